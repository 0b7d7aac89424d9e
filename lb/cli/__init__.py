"""The command line: arguments in, output and exit codes out; the work is done below."""
