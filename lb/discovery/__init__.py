"""Where backends come from beside the configuration: sources, each of which yields whole sets.

`source` says what a source is, which is all that one for another system has to be; `follow` runs
them; `file`, `dns` and `names` look at files, at DNS, and at the host names of known backends.
"""
