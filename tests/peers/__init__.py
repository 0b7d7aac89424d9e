"""Honest peers: clients as they are in the world, against the process with its default limits.

No call of theirs fails, and none of their connections is closed.

`make peers` runs all of them. What needs nothing but what the tests install anyway also runs with
`make test`: modules named `test_*`; the others, `peer_*`, need Node or Java.
"""
