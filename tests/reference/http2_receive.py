"""Receiving without short ways: every frame is looked at in the plain way, one by one, so that the
tables of states decide on all of them."""

from __future__ import annotations

from lb.wire.http2 import frames as fr
from lb.wire.http2.codec import _CONNECTION_CREDIT, Http2Codec


def receive_plainly(codec: Http2Codec, data: bytes) -> None:
    """As `Http2Codec.receive`, but for the limit on frames at once."""
    data = codec._tail + data
    codec._tail = b""
    codec.left = codec.frames_at_once
    size = len(data)
    pos = codec._go_on(data, size)
    while pos + 9 <= size:
        after = codec._uncommon(data, pos, size)
        if after < 0:
            break
        pos = after
    codec._tail = data[pos:]
    if codec.is_within_block:
        codec.on_unfinished()
    if codec.owed >= _CONNECTION_CREDIT:
        codec.out.append(fr.window_update(0, codec.owed))
        codec._credited_in += codec.owed
        codec.owed = 0
