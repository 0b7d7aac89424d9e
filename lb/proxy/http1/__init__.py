"""HTTP/1.1: clients' connections, backends' connections, and the exchange between them.

`server` reads requests from a client and `client` reads answers from a backend; both only know
the codec and their transport. `exchange` is one request: it has a backend chosen, connects the
two sides, passes pressure back, and decides what happens when one of them fails. `pool` keeps
idle connections, `heads` remembers what heads mean, `answers` writes our own answers.
"""
