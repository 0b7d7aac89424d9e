"""What is played: requests of one client connection, and what backends do with each attempt.

A plan is a pure function of a seed and its number, so that a difference is played again by naming
both. Every request has an id, by which backends find what they are to do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from random import Random

from lb.kserve import inference_pb2 as pb

PLAIN, BATCHED, STATEFUL, DECOUPLED = "plain", "batched", "stateful", "free"
MODELS = (PLAIN, BATCHED, STATEFUL, DECOUPLED)
BODY_SIZES = (0, 1, 130, 1_000, 16_384, 70_000, 150_000)
"""Five of the largest stay within the flow control windows that peers announce at first."""
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM_INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
METADATA = "/inference.GRPCInferenceService/ModelMetadata"


class Protocol(StrEnum):
    """What a client connection speaks."""

    HTTP = "http"
    GRPC = "grpc"
    STREAM = "stream"
    """`ModelStreamInfer`: a plan is one stream, and its requests are messages."""


class Act(StrEnum):
    """What a backend does with an attempt."""

    ANSWER = "answer"
    ERROR = "error"
    """An answer with an error status."""
    ELSEWHERE = "elsewhere"
    """An error that another backend may not have: the model is not there, or it exits."""
    LOST = "lost"
    """It closes the connection without an answer."""
    CUT = "cut"
    """It closes the connection within its answer."""
    REFUSED = "refused"
    """HTTP/2 REFUSED_STREAM."""
    RESET = "reset"
    """HTTP/2 INTERNAL_ERROR."""
    NO_TRAILERS = "no trailers"
    """gRPC: the stream ends without trailers."""
    GARBAGE = "garbage"
    """Bytes that are no answer of the protocol."""
    SILENT = "silent"
    """No answer, until the attempt is abandoned."""


@dataclass(frozen=True)
class Reply:
    """What a backend does with one attempt."""

    act: Act
    size: int = 0
    """Of the answer's body or message, in bytes."""
    pieces: int = 1
    """In how many writes the answer comes."""
    is_chunked: bool = False


@dataclass(frozen=True)
class Request:
    """One request, or one message of a stream."""

    id: str
    model: str
    path: str
    method: str = "POST"
    body: bytes = b""
    is_chunked: bool = False
    fields: tuple[tuple[str, str], ...] = ()
    replies: tuple[Reply, ...] = (Reply(Act.ANSWER),)
    """By attempt; the last one holds for all further ones."""
    is_left: bool = False
    """The client resets it once a backend has it."""
    timeout_ms: int = 0
    """gRPC deadline; 0: none."""


@dataclass(frozen=True)
class Plan:
    """One client connection."""

    number: int
    protocol: Protocol
    requests: tuple[Request, ...]
    splits: tuple[float, ...] = field(default=())
    """Where the bytes of a request are cut into writes, as fractions of its length."""
    is_pipelined: bool = False
    """Messages of a stream are sent without waiting for answers."""


def make(seed: int, number: int) -> Plan:
    """The plan of this number."""
    rng = Random(f"{seed}.{number}")
    protocol = rng.choice((Protocol.HTTP, Protocol.GRPC, Protocol.GRPC, Protocol.STREAM))
    if protocol is Protocol.HTTP:
        protocol = rng.choice((Protocol.HTTP, Protocol.HTTP, Protocol.GRPC))
    splits = tuple(sorted(rng.random() for _ in range(rng.choice((0, 0, 1, 3)))))
    is_sequence = rng.random() < 0.2
    count = rng.choice((1, 1, 2, 4)) if not is_sequence else rng.choice((2, 3, 5))
    make_one = {Protocol.HTTP: _http, Protocol.GRPC: _grpc, Protocol.STREAM: _message}[protocol]
    requests = []
    for at in range(count):
        step = (number + 1, at == 0, at == count - 1) if is_sequence else None
        requests.append(make_one(rng, f"{number}.{at}", step))
        if requests[-1].is_left:
            break
    # Where a fault meets messages on the way, what becomes of these is a matter of time.
    is_smooth = not any(each.is_left or len(each.replies) > 1 for each in requests)
    return Plan(number, protocol, tuple(requests), splits, is_smooth and rng.random() < 0.5)


_Step = tuple[int, bool, bool] | None
"""Sequence id, start and end."""


def _http(rng: Random, request_id: str, step: _Step) -> Request:
    model = STATEFUL if step else rng.choice((PLAIN, PLAIN, BATCHED, f"other-{request_id}"))
    replies = _replies(rng, (Act.ERROR, Act.ELSEWHERE, Act.LOST, Act.CUT, Act.GARBAGE))
    fields = [("x-number", str(rng.randrange(1000)))] if rng.random() < 0.4 else []
    if rng.random() < 0.15 and step is None:
        path = rng.choice((f"/v2/models/{model}", f"/v2/models/{model}/ready", "/v2", "/nothing"))
        method = rng.choice(("GET", "GET", "HEAD"))
        return Request(request_id, model, path, method, fields=tuple(fields), replies=replies)
    path = f"/v2/models/{model}/infer"
    tensor = rng.randbytes(rng.choice(BODY_SIZES))
    head = _json_head(request_id, len(tensor), step, rng.choice((1, 1, 8)))
    fields.append(("inference-header-content-length", str(len(head))))
    return Request(
        request_id, model, path, body=head + tensor, is_chunked=rng.random() < 0.3,
        fields=tuple(fields), replies=replies, is_left=rng.random() < 0.06,
    )  # fmt: skip


def _json_head(request_id: str, size: int, step: _Step, rows: int) -> bytes:
    parameters = ""
    if step is not None:
        number, is_start, is_end = step
        start, end = str(is_start).lower(), str(is_end).lower()
        said = f'"sequence_id":{number},"sequence_start":{start},"sequence_end":{end}'
        parameters = f',"parameters":{{{said}}}'
    return (
        f'{{"id":"{request_id}"{parameters},"inputs":[{{"name":"IN","datatype":"UINT8",'
        f'"shape":[{rows},{size}],"parameters":{{"binary_data_size":{size}}}}}]}}'
    ).encode()


def _grpc(rng: Random, request_id: str, step: _Step) -> Request:
    model = STATEFUL if step else rng.choice((PLAIN, PLAIN, BATCHED, f"other-{request_id}"))
    acts = (
        Act.ERROR, Act.ELSEWHERE, Act.LOST, Act.CUT, Act.REFUSED, Act.RESET, Act.NO_TRAILERS,
        Act.SILENT,
    )  # fmt: skip
    replies = _replies(rng, acts)
    fields = [("x-number", str(rng.randrange(1000)))] if rng.random() < 0.4 else []
    is_silent = any(reply.act is Act.SILENT for reply in replies)
    timeout_ms = 250 if is_silent else rng.choice((0, 0, 20_000))
    if rng.random() < 0.1 and step is None and not is_silent:
        body = pb.ModelMetadataRequest(name=model).SerializeToString(deterministic=True)
        return Request(request_id, model, METADATA, body=body, replies=replies)
    return Request(
        request_id, model, INFER, body=_message_bytes(rng, request_id, model, step),
        fields=tuple(fields), replies=replies, timeout_ms=timeout_ms,
        is_left=not is_silent and rng.random() < 0.06,
    )  # fmt: skip


def _message_bytes(rng: Random, request_id: str, model: str, step: _Step) -> bytes:
    tensor = rng.randbytes(rng.choice(BODY_SIZES))
    message = pb.ModelInferRequest(model_name=model, id=request_id)
    message.inputs.add(name="IN", datatype="UINT8", shape=[rng.choice((1, 8)), len(tensor)])
    if step is not None:
        number, is_start, is_end = step
        message.parameters["sequence_id"].int64_param = number
        message.parameters["sequence_start"].bool_param = is_start
        message.parameters["sequence_end"].bool_param = is_end
    message.raw_input_contents.append(tensor)
    return message.SerializeToString(deterministic=True)


def _message(rng: Random, request_id: str, step: _Step) -> Request:
    model = STATEFUL if step else rng.choice((PLAIN, BATCHED, DECOUPLED))
    acts = (Act.ERROR, Act.ELSEWHERE, Act.LOST, Act.RESET)
    return Request(
        request_id, model, STREAM_INFER, body=_message_bytes(rng, request_id, model, step),
        replies=_replies(rng, acts), is_left=rng.random() < 0.03,
    )  # fmt: skip


def _replies(rng: Random, faults: tuple[Act, ...]) -> tuple[Reply, ...]:
    """Most requests are answered at once; others meet one to three faults first."""
    count = rng.choice((0,) * 6 + (1, 1, 2, 3))
    replies = [Reply(rng.choice(faults), size=100) for _ in range(count)]
    size = rng.choice(BODY_SIZES)
    last = Reply(Act.ANSWER, size, rng.choice((1, 1, 2, 5)), is_chunked=rng.random() < 0.3)
    return (*replies, last)
