"""Two versions of the product side by side: the same generated requests, compared on both sides.

`make diff-against REV` serves a commit and the working tree as users do, before backends that are
scripted request by request, and compares what clients got, what backends got, the access log and
the counters. Nothing here imports the relay, so that it holds whatever becomes of the relay.
"""
