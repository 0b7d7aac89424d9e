"""What an operator configures: the models, and how text becomes settings or a list of problems.

Pure: the environment and the reading of files are arguments.
"""
