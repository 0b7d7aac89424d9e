"""HTTP/1.1 on the wire (RFC 9112, RFC 9110): strict, sans-IO, for both sides of a relay.

`request` and `response` read heads and rebuild them for the other side, `collect` puts heads
together that arrive in pieces, `body` decodes and encodes bodies, `forwarded` adds the fields
that name the client. Whatever is not plainly legal raises `MessageError` and is never relayed.
"""
