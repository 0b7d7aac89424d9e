"""Calls of TF Serving are placed once their model is known."""

from __future__ import annotations

import pytest

from tests.fakes.http2_connections import PaperRelay
from tests.wire.frames import DATA, data, headers, message, request_fields

PREDICT = b"/tensorflow.serving.PredictionService/Predict"
MULTI = b"/tensorflow.serving.PredictionService/MultiInference"
SPEC = b"\x0a\x06\x0a\x04half\x12\x01x"
TASKS = b"\x0a\x08\x0a\x06\x0a\x04half\x12\x01x"


@pytest.mark.parametrize(("path", "text"), [(PREDICT, SPEC), (MULTI, TASKS)])
@pytest.mark.parametrize("step", [1, 6, 1000])
async def test_the_model_is_read_however_the_message_comes(
    path: bytes, text: bytes, step: int
) -> None:
    relay = PaperRelay()
    client, backend = relay.client(), relay.backend()
    request = message(text)
    client.sends(headers(1, request_fields(path=path)))
    for at in range(0, len(request), step):
        client.sends(data(1, request[at : at + step], end=at + step >= len(request)))
    sent = b"".join(frame.payload for frame in backend.gets() if frame.kind == DATA)
    assert sent == request
    (stream,) = relay.connections[0].streams.values()
    assert stream.owner.model == b"half"


@pytest.mark.parametrize(
    "frames",
    [
        [headers(1, request_fields(path=PREDICT), end=True)],
        [headers(1, request_fields(path=PREDICT)), data(1, message(b""), end=True)],
        [headers(1, request_fields(path=PREDICT)), data(1, message(b"\x12\x00"), end=True)],
    ],
)
async def test_a_call_without_a_model_is_for_the_backend_to_judge(frames: list[bytes]) -> None:
    relay = PaperRelay()
    client, backend = relay.client(), relay.backend()
    client.sends(*frames)
    assert backend.gets()


async def test_a_long_message_is_not_waited_for() -> None:
    relay = PaperRelay()
    client, backend = relay.client(), relay.backend()
    client.sends(
        headers(1, request_fields(path=PREDICT)),
        data(1, b"\0\0\1\0\0" + b"\x0a\xf0\x90\x01\x0a\xe8\x90\x01" + bytes(3000)),
    )
    assert backend.gets()
