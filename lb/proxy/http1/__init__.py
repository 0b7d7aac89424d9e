"""HTTP/1.1: clients' connections, backends' connections, and the requests between them.

`server` reads requests from a client and `client` reads answers from a backend; both only know
the codec and their transport. `exchange` has the two halves of a request: the client's, which is
placed, perhaps again, and that of one backend, which passes the answer on. `pool` keeps idle
connections, `heads` remembers what heads mean, `answers` writes our own answers.

From the bottom up: `shared` (what all use), `client`, `request_body`, `exchange`, `watched` and
`asked` (what some requests go through first), `server`, `front` (ports for hosting platforms),
`relay`. `sides` says what the lower ones ask of the upper ones.
"""
