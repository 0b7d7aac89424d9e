"""Control plane: who is in the pool, how they are, and the snapshot that the data plane reads.

`directory` decides, synchronously; `loops` brings it news of the probes; `views` says for people
and for metrics how things stand.
"""
