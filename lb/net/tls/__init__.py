"""TLS on both sides: contexts that follow their files, and transports between them and us.

`server` and `client` hold the contexts, `watch` has them follow their files, `transport` carries
bytes, `accept` and `connect` begin connections.
"""
