"""Cases by number: the same seed and number give the same case, whatever came before."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import replace
from random import Random
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from tests.differential.cases import Case, GrpcCase, HttpCase, Pair
from tests.differential.payloads import (
    MODELS,
    SEQUENCES,
    SPARE,
    damaged,
    infer_message,
    json_body,
    outputs,
    parameters,
    sequence,
    tensors,
)

_JSON_SIZE = b"Inference-Header-Content-Length"
_SERVICE = b"/inference.GRPCInferenceService/"
_NAMES = (
    *MODELS, SPARE, "nosuch", "simple%6c", "sim ple", "a/b", "..", "mäx", "m" * 255, "m" * 256, "",
    "simple?x=1", "simple;v=1", "SIMPLE", "%00", "a%2Fb",
)  # fmt: skip
_VERSIONS = ("", "", "", "/versions/1", "/versions/2", "/versions/01", "/versions/x", "/versions/")
_ACTIONS = (
    "", "/ready", "/config", "/stats", "/infer", "/generate", "/generate_stream", "/trace/setting",
    "/nosuch", "/",
)  # fmt: skip
_FIXED = (
    "/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/v2/logging",
    "/v2/trace/setting", "/v2/repository/index", "/v2/repository/other/index",
    "/v2/systemsharedmemory/status", "/v2/systemsharedmemory/region/r/status",
    "/v2/cudasharedmemory/status", "/v2/cudasharedmemory/region/r/status", "/", "/metrics",
    "/v2/nosuch", "/v2//models", "/v2/models", "/v2?a=b", "/v2?ä=€", "/ä", "/v3", "/v2/../v2",
    "/v2/health/live/", "/v2/health/LIVE", "/v2%2fhealth", "*", "//", "/v1/models/simple",
)  # fmt: skip
_METHODS = (b"GET",) * 6 + (b"POST",) * 4 + (
    b"HEAD", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"BREW", b"get", b"M-SEARCH", b"A_B",
)  # fmt: skip
_FIELDS: tuple[Pair, ...] = (
    (b"Accept", b"*/*"), (b"User-Agent", b"fuzz/1"), (b"X-Request-Id", b"r-1"), (b"x-odd", b""),
    (b"X-Latin", b"caf\xe9"), (b"X-Long", b"v" * 3000), (b"x_underscore", b"1"),
    (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    (b"Authorization", b"Bearer abc"), (b"Cookie", b"a=b"), (b"Connection", b"close"),
    (b"Connection", b"keep-alive"), (b"Connection", b"X-Odd"), (b"Keep-Alive", b"timeout=5"),
    (b"TE", b"trailers"), (b"Expect", b"100-continue"), (b"Upgrade", b"h2c"),
    (b"Accept-Encoding", b"gzip"), (b"Accept-Encoding", b"deflate, gzip"),
    (b"Accept-Encoding", b"identity"), (b"Accept-Encoding", b"br"),
    (b"Content-Type", b"application/json"), (b"Content-Type", b"application/octet-stream"),
    (b"Content-Encoding", b"identity"), (b"endpoint-load-metrics-format", b"text"),
    (b"Range", b"bytes=0-1"), (b"If-None-Match", b"*"), (b"X-Forwarded-For", b"192.0.2.1"),
)  # fmt: skip
_METADATA: tuple[Pair, ...] = (
    (b"x-text", b"words and spaces"), (b"x-twice", b"1"), (b"x-twice", b"2"), (b"x-empty", b""),
    (b"x-bytes-bin", b"AAEC/w"), (b"host", b"model.example.com"), (b"x-space", b" around "),
    (b"x-tab", b"\tbefore"), (b"x-long", b"v" * 3000), (b"user-agent", b"grpc-fuzz/1"),
    (b"grpc-accept-encoding", b"identity,gzip"), (b"grpc-timeout", b"30S"),
    (b"grpc-timeout", b"20000m"), (b"authorization", b"Bearer abc"), (b"x-utf8", "ä€".encode()),
    (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    (b"x_underscore", b"1"), (b"grpc-previous-rpc-attempts", b"2"), (b"x-request-id", b"r-1"),
    (b"priority", b"u=1"),
)  # fmt: skip
ODD_METADATA: tuple[Pair, ...] = (
    (b"connection", b"close"), (b"transfer-encoding", b"chunked"), (b"keep-alive", b"1"),
    (b"upgrade", b"h2c"), (b"te", b"gzip"), (b"te", b"trailers"), (b"X-Upper", b"1"),
    (b"content-length", b"3"), (b"content-length", b"x"), (b"grpc-timeout", b"soon"),
    (b":late", b"1"), (b"x-nul", b"a\0b"), (b"x y", b"1"), (b"grpc-encoding", b"br"),
)  # fmt: skip
"""One of the two sides, or both, refuse these."""
_ASKING = (
    "ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelConfig",
    "ModelStatistics", "RepositoryIndex", "SystemSharedMemoryStatus", "CudaSharedMemoryStatus",
    "LogSettings", "TraceSetting", "Check",
)  # fmt: skip


def make_case(seed: int, number: int) -> Case:
    """The case of that number."""
    rng = Random(f"{seed}:{number}")
    makers = (
        (_http_inference, 8), (_http_route, 8), (_http_control, 3), (_http_generate, 2),
        (_grpc_inference, 8), (_grpc_question, 8), (_grpc_control, 3), (_grpc_stream, 4),
        (_grpc_odd, 3),
    )  # fmt: skip
    (maker,) = rng.choices([maker for maker, _ in makers], [weight for _, weight in makers])
    case = maker(rng)
    # What one side refuses and the other does not must change nothing, or they are not alike then.
    is_harmless = maker in (_http_route, _grpc_question, _grpc_odd)
    if isinstance(case, HttpCase):
        return _with_fields(rng, case, is_odd=is_harmless)
    return _with_metadata(rng, case, is_odd=is_harmless and rng.random() < 0.3)


# HTTP


def _with_fields(rng: Random, case: HttpCase, *, is_odd: bool) -> HttpCase:
    fields = (*case.fields, *rng.sample(_FIELDS, rng.choice((0, 0, 0, 1, 2, 4))))
    host: tuple[Pair, ...] = ((b"Host", b"triton.test"),)
    version = b"HTTP/1.1"
    match rng.randrange(40):
        case 0 if is_odd:
            host = ()
        case 1 if is_odd:
            host = ((b"Host", b"a"), (b"Host", b"b"))
        case 2:
            version = b"HTTP/1.0"
    # Triton 2.51 reads no text that is in two pieces of a binary body.
    is_binary = any(name == _JSON_SIZE for name, _ in case.fields)
    may_be_chunked = version != b"HTTP/1.0" and not is_binary
    if case.body is not None and may_be_chunked and rng.random() < 0.2:
        case = replace(case, chunks=tuple(rng.choice((1, 7, 100, 5000)) for _ in range(2)))
        if len(case.body or b"") > 2000:
            case = replace(case, chunks=(1000,))
    return replace(case, fields=(*host, *fields), version=version)


def _model(rng: Random) -> str:
    return rng.choice(MODELS) if rng.random() < 0.8 else rng.choice(_NAMES)


def _parameters(rng: Random, model: str) -> dict[str, Any]:
    if model in SEQUENCES or rng.random() < 0.05:
        return parameters(rng, may_be_wrong=False) | sequence(rng)
    return parameters(rng)


def _http_inference(rng: Random) -> HttpCase:
    model = rng.choice(MODELS)
    inputs = tensors(rng, model)
    if rng.random() < 0.15:
        inputs = damaged(rng, inputs)
    said = _parameters(rng, model)
    binary = rng.random() < 0.4
    body, size = json_body(rng, inputs, said, outputs(model), binary=binary)
    fields: list[Pair] = []
    if binary or rng.random() < 0.05:
        wrong = rng.choice((size - 1, size + 1, len(body), len(body) + 1))
        named = size if rng.random() < 0.95 else wrong
        fields.append((_JSON_SIZE, b"%d" % named))
    match rng.randrange(12):
        case 0:
            body = gzip.compress(body, mtime=0)
            fields.append((b"Content-Encoding", b"gzip"))
        case 1:
            body = zlib.compress(body)
            fields.append((b"Content-Encoding", b"deflate"))
        case 2:
            fields.append((b"Content-Encoding", rng.choice((b"br", b"gzip"))))
        case 3:
            body = _mutated(rng, body)
    version = rng.choice(_VERSIONS)
    target = f"/v2/models/{model}{version}/infer".encode()
    return HttpCase(method=b"POST", target=target, fields=tuple(fields), body=body)


def _mutated(rng: Random, text: bytes) -> bytes:
    """Broken JSON. Digits stay: a changed size may ask for gigabytes, or for nothing."""
    places = [at for at, byte in enumerate(text) if byte in b'{}[]":,']
    if not places:
        return text[:-1]
    at = rng.choice(places)
    return rng.choice((text[:at], text[:at] + text[at + 1 :], text[:at] + b"}" + text[at:]))


def _http_route(rng: Random) -> HttpCase:
    if rng.random() < 0.5:
        target = rng.choice(_FIXED)
    else:
        target = f"/v2/models/{_model(rng)}{rng.choice(_VERSIONS)}{rng.choice(_ACTIONS)}"
    method = rng.choice(_METHODS)
    body = rng.choice((b"", b"{}", b"[]", b"{", b"x" * 100)) if method == b"POST" else None
    return HttpCase(method=method, target=target.replace(" ", "%20").encode(), body=body)


def _http_generate(rng: Random) -> HttpCase:
    model = rng.choice(("identity_fp32", "simple_identity", "repeat_int32", "failing", "nosuch"))
    body: dict[str, object] = {"INPUT0": [1.5, 2]}
    if model == "repeat_int32":
        count = rng.randint(1, 3)
        body = {"IN": list(range(count)), "DELAY": [0] * count}
    elif model == "simple_identity":
        body = {"INPUT0": "text"}
    elif model == "failing":
        body = {"WHY": rng.choice(("because", "raise"))}
    if rng.random() < 0.1:
        body["other"] = 1
    text = json.dumps(body).encode()
    if rng.random() < 0.1:
        text = _mutated(rng, text)
    action = rng.choice(("generate", "generate_stream"))
    return HttpCase(method=b"POST", target=f"/v2/models/{model}/{action}".encode(), body=text)


_LOGGING = (
    b'{"log_verbose_level":1}', b'{"log_verbose_level":0}', b'{"log_info":false}',
    b'{"log_info":true}', b'{"nosuch":1}', b'{"log_info":"x"}', b"{", b"[]", b"{}",
)  # fmt: skip
_TRACING = (b'{"trace_rate":"7"}', b'{"trace_rate":"1000"}', b'{"trace_rate":7}', b'{"nosuch":"1"}',
            b'{"trace_level":["OFF"]}', b"{", b"{}")  # fmt: skip
_REGIONS = (b'{"key":"/no_such_key","offset":0,"byte_size":64}', b'{"key":"/no_such_key"}', b"{",
            b"{}", b'{"key":7,"offset":"a","byte_size":-1}')  # fmt: skip


def _http_control(rng: Random) -> HttpCase:
    match rng.randrange(8):
        case 0:
            target, body = f"/v2/repository/models/{SPARE}/load", b"{}"
        case 1:
            target, body = f"/v2/repository/models/{SPARE}/unload", b"{}"
        case 2:
            action = rng.choice(("load", "unload"))
            target, body = f"/v2/repository/models/nosuch/{action}", rng.choice((b"{}", b"{", b""))
        case 3:
            target, body = "/v2/logging", rng.choice(_LOGGING)
        case 4:
            target, body = "/v2/trace/setting", rng.choice(_TRACING)
        case 5:
            model = rng.choice(("simple", "nosuch"))
            target, body = f"/v2/models/{model}/trace/setting", rng.choice(_TRACING)
        case 6:
            area = rng.choice(("system", "cuda"))
            target = f"/v2/{area}sharedmemory/region/r/register"
            body = rng.choice(_REGIONS)
        case _:
            area = rng.choice(("system", "cuda"))
            place = rng.choice(("", "/region/r"))
            target, body = f"/v2/{area}sharedmemory{place}/unregister", rng.choice((b"", b"{}"))
    return HttpCase(method=b"POST", target=target.encode(), body=body)


# gRPC


def _with_metadata(rng: Random, case: GrpcCase, *, is_odd: bool) -> GrpcCase:
    usual = rng.sample(_METADATA, rng.choice((0, 0, 1, 2, 5)))
    odd = [rng.choice(ODD_METADATA)] if is_odd else []
    authority = rng.choice((b"triton.test", b"localhost:8001", b"[::1]:1"))
    fresh = rng.random() < 0.1
    metadata = (*case.metadata, *usual, *odd)
    return replace(case, metadata=metadata, authority=authority, fresh=fresh)


def _grpc_inference(rng: Random) -> GrpcCase:
    model = rng.choice(MODELS)
    inputs = tensors(rng, model)
    if rng.random() < 0.15:
        inputs = damaged(rng, inputs)
    said = _parameters(rng, model)
    name = model if rng.random() < 0.95 else rng.choice(("nosuch", "", "ä"))
    message = infer_message(rng, name, inputs, said, rng.choice(("", "1", "ä")))
    return _encoded(rng, GrpcCase(path=_SERVICE + b"ModelInfer", messages=(message,)))


def _encoded(rng: Random, case: GrpcCase) -> GrpcCase:
    """The same call with compressed messages, now and then."""
    if rng.random() > 0.15:
        return case
    name, pack = rng.choice(((b"gzip", _gzip), (b"deflate", zlib.compress)))
    packed = tuple(pack(message) for message in case.messages)
    metadata = (*case.metadata, (b"grpc-encoding", name))
    return replace(case, messages=packed, compressed=True, metadata=metadata)


def _gzip(text: bytes) -> bytes:
    return gzip.compress(text, mtime=0)


def _question(rng: Random, method: str) -> bytes:
    name = _model(rng)
    version = rng.choice(("", "", "1", "2", "x"))
    match method:
        case "ModelReady":
            message = pb.ModelReadyRequest(name=name, version=version)
        case "ModelMetadata":
            message = pb.ModelMetadataRequest(name=name, version=version)
        case "ModelConfig":
            message = pb.ModelConfigRequest(name=name, version=version)
        case "ModelStatistics":
            message = pb.ModelStatisticsRequest(name=rng.choice(("", name)), version=version)
        case "RepositoryIndex":
            message = pb.RepositoryIndexRequest(ready=rng.random() < 0.5)
        case "SystemSharedMemoryStatus" | "CudaSharedMemoryStatus":
            message = pb.SystemSharedMemoryStatusRequest(name=rng.choice(("", "r")))
        case _:
            return b""
    return bytes(message.SerializeToString(deterministic=True))


def _grpc_question(rng: Random) -> GrpcCase:
    method = rng.choice(_ASKING)
    path = b"/grpc.health.v1.Health/Check" if method == "Check" else _SERVICE + method.encode()
    return _encoded(rng, GrpcCase(path=path, messages=(_question(rng, method),)))


def _grpc_control(rng: Random) -> GrpcCase:
    match rng.randrange(6):
        case 0:
            method, message = "RepositoryModelLoad", pb.RepositoryModelLoadRequest(
                model_name=rng.choice((SPARE, "nosuch", ""))
            )  # fmt: skip
        case 1:
            method, message = "RepositoryModelUnload", pb.RepositoryModelUnloadRequest(
                model_name=rng.choice((SPARE, "nosuch", ""))
            )  # fmt: skip
        case 2:
            method, message = "SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(
                name=rng.choice(("r", "")), key="/no_such_key", byte_size=64
            )  # fmt: skip
        case 3:
            method, message = "SystemSharedMemoryUnregister", (
                pb.SystemSharedMemoryUnregisterRequest(name=rng.choice(("r", "")))
            )  # fmt: skip
        case 4:
            method, message = "LogSettings", pb.LogSettingsRequest()
            name = rng.choice(("log_verbose_level", "nosuch"))
            message.settings[name].uint32_param = rng.choice((0, 1))
        case _:
            method, message = "TraceSetting", pb.TraceSettingRequest(
                model_name=rng.choice(("", "simple", "nosuch"))
            )  # fmt: skip
            message.settings["trace_rate"].value.append(rng.choice(("7", "1000", "x")))
    return GrpcCase(
        path=_SERVICE + method.encode(),
        messages=(bytes(message.SerializeToString(deterministic=True)),),
    )


def _grpc_stream(rng: Random) -> GrpcCase:
    """Streams of one model: what several answer at once comes in any order."""
    model = rng.choice(("simple", "simple_identity", "repeat_int32", "accumulator", "nosuch"))
    count = rng.randint(1, 4)
    messages = []
    for number in range(count):
        inputs = tensors(rng, model)
        said = _parameters(rng, model)
        messages.append(infer_message(rng, model, inputs, said, str(number)))
    # Errors that end a stream may kill Triton 2.51, so nothing asks for them.
    return _encoded(rng, GrpcCase(path=_SERVICE + b"ModelStreamInfer", messages=tuple(messages)))


def _grpc_odd(rng: Random) -> GrpcCase:
    """What no generated client sends. Not for streams: Triton 2.51 dies of some of it there."""
    method = rng.choice((*_ASKING, "ModelInfer", "Nope"))
    path = b"/grpc.health.v1.Health/Check" if method == "Check" else _SERVICE + method.encode()
    case = GrpcCase(path=path, messages=(_question(rng, method),))
    match rng.randrange(6):
        case 0:
            return replace(case, messages=())
        case 1:
            return replace(case, messages=(b"\xff\xff\xff",))
        case 2:
            return replace(case, messages=(*case.messages, b""))
        case 3:
            return replace(case, messages=(b"\x0a\x05ab",))
        case 4:
            return replace(case, cut=1)
        case _:
            odd = (b"/a.b/C", b"/", path.lower(), path + b"/", b"/\xc3\xa4", path + b"?x=1")
            return replace(case, path=rng.choice(odd))
