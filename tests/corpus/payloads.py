"""What is wrong with KServe requests that are well-formed HTTP, and what is only odd.

The rows keep the ids of b5 in the review of trusted proxies. The drop-in rule stands above that
review: what a Triton takes from its client passes, see `DEVIATIONS`. T-12 to T-15 over gRPC are
rows G-12 of `grpc`.
"""

from __future__ import annotations

import gzip
import json
from typing import Final

from tests.corpus.http1_rows import HELLO, HOST, SECOND, TE, Row, get, post

_HEADER: Final = "CVE-2026-24175, fix of an uncaught out_of_range in Triton"
_CHUNKS: Final = "CVE-2025-23310, CVE-2025-23311"
_NAME: Final = "CVE-2025-23316, CVE-2026-24208, CVE-2026-24209, CVE-2026-47627"
_VERSION: Final = "Triton http_server.cc: versions are digits"
_REGION: Final = "CVE-2025-23319, CVE-2025-23320, CVE-2025-23334"
_LOAD: Final = "CVE-2023-31036, CVE-2025-23316"
_LOG: Final = "CVE-2024-0087, CVE-2024-0095"
_TRACE: Final = "CVE-2024-0100"
_MEMORY: Final = "CVE-2024-0088, CVE-2024-0116, CVE-2025-23319"
_REDIRECT: Final = "CVE-2026-24206, CVE-2026-24207, CVE-2025-33238"
_DROP_IN: Final = "KServe v2: what a server takes, the balancer takes"
_EVASION: Final = "CVE-2026-24206, CVE-2026-47481: the same route by another spelling"


def _infer(fields: bytes, body: bytes = HELLO, model: bytes = b"m") -> bytes:
    line = b"POST /v2/models/%b/infer HTTP/1.1" % model
    return post(b"Content-Length: %d\r\n%b" % (len(body), fields), body, line)


def _json_length(number: str, what: str, value: bytes) -> Row:
    wire = _infer(b"Inference-Header-Content-Length:" + value + b"\r\n")
    return Row(f"T-1{number}", what, wire, 400, _HEADER)


def _passes(id: str, what: str, wire: bytes, source: str = _DROP_IN, **more: object) -> Row:
    return Row(id, what, wire, 200, source, 1, of_relay=True, **more)  # type: ignore[arg-type]


def _asks(id: str, what: str, wire: bytes, status: int) -> Row:
    """Put to all backends under our own name. Merged answers of this corpus's backends, which speak
    no JSON, are 502: that shows that it was asked."""
    return Row(id, what, wire, status, _DROP_IN, of_relay=True, keeps=True)


def _body(id: str, what: str, body: bytes, source: str, fields: bytes = b"") -> Row:
    return _passes(id, what, _infer(fields, body), source, body=body)


def _gate(id: str, what: str, wire: bytes, source: str) -> Row:
    """Refused for what it asks for; whatever follows is not served."""
    return Row(id, what, wire + SECOND, 400, source, of_relay=True)


_LONG: Final = b"Inference-Header-Content-Length: 900\r\n"
JSON_LENGTH: Final = (
    _json_length("a", "minus", b" -1"),
    _json_length("b", "plus", b" +5"),
    _json_length("c", "word", b" abc"),
    _json_length("d", "empty", b""),
    _json_length("e", "exponent", b" 1e3"),
    _json_length("f", "more than there is", b" 6"),
    _json_length("g", "2^31", b" 2147483648"),
    _json_length("h", "23 digits", b" " + b"9" * 23),
    _json_length("i", "twice", b" 5\r\nInference-Header-Content-Length: 5"),
    _json_length("j", "list", b" 5, 5"),
    _json_length("k", "hexadecimal", b" 0x5"),
    _json_length("l", "inner space", b" 5 5"),
    _json_length("m", "no-break space", b" 5\xa0"),
    _json_length("n", "fraction", b" 5.0"),
    Row("T-1o", "2^31 in chunks",
        post(b"Inference-Header-Content-Length: 2147483648\r\n" + TE, b"5\r\nhello\r\n0\r\n\r\n",
             b"POST /v2/models/m/infer HTTP/1.1"), 400, _HEADER),
    Row("T-1p", "without a body", get(HOST + b"Inference-Header-Content-Length: 1\r\n"), 400,
        _HEADER),
    Row("T-1q", "of a body as it is", _infer(_LONG + b"Content-Encoding: identity\r\n"), 400,
        _HEADER),
    _passes("T-1r", "all of it", _infer(b"Inference-Header-Content-Length: 5\r\n"), body=HELLO),
    _passes("T-1s", "raw tensor", _infer(b"Inference-Header-Content-Length:  0 \r\n"),
            body=HELLO),
    _passes("T-1t", "of a compressed body", _infer(_LONG + b"Content-Encoding: gzip\r\n"),
            body=HELLO),
)  # fmt: skip

_STORM: Final = 200_000
BODIES: Final = (
    _passes("T-2a", "storm of chunks",
            post(TE, b"1\r\nx\r\n" * _STORM + b"0\r\n\r\n", b"POST /v2/models/m/infer HTTP/1.1"),
            _CHUNKS, body=b"x" * _STORM, chunks=64),
    _passes("T-2b", "storm of chunks with extensions",
            post(TE, b"1;a=b\r\nx\r\n" * 20_000 + b"0\r\n\r\n",
                 b"POST /v2/models/m/infer HTTP/1.1"), _CHUNKS, body=b"x" * 20_000, chunks=64),
    _body("T-3a", "JSON 101 deep", b"[" * 101 + b"]" * 101, "CVE-2025-23325"),
    _body("T-3b", "JSON 100,000 deep", b'{"inputs":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
          "CVE-2025-23325"),
    _body("T-3c", "objects 50,000 deep, not closed", b'{"a":' * 50_000, "CVE-2025-23325"),
    _body("T-5a", "gzip of 16 MiB of zeros", gzip.compress(bytes(16 << 20)),
          "CVE-2026-24158, CVE-2026-24264", b"Content-Encoding: gzip\r\n"),
    _body("T-5b", "no gzip at all", b"not gzip", "CVE-2026-24158",
          b"Content-Encoding: gzip\r\n"),
    _body("T-7", "100,000 outputs",
          json.dumps({"inputs": [], "outputs": [{"name": "O"}] * 100_000}).encode(),
          "CVE-2026-24146"),
    _body("T-8", "shared memory in an infer request", b'{"inputs":[{"name":"I","shape":[1],'
          b'"datatype":"INT32","parameters":{"shared_memory_region":"r",'
          b'"shared_memory_byte_size":64}}]}', _REGION),
    _body("T-17", "a request id", b'{"id":"1","inputs":[]}', _DROP_IN),
)  # fmt: skip


def _shape(letter: str, what: str, shape: bytes) -> Row:
    body = b'{"inputs":[{"name":"I","datatype":"FP32","shape":%b,"data":[1]}]}' % shape
    source = "CVE-2025-23321, CVE-2025-23323, CVE-2025-23324, CVE-2025-23326, CVE-2025-23331"
    return _body(f"T-6{letter}", what, body, source)


def _binary(letter: str, what: str, size: bytes) -> Row:
    head = (
        b'{"inputs":[{"name":"I","datatype":"FP32","shape":[1],'
        b'"parameters":{"binary_data_size":%b}}]}' % size
    )
    fields = b"Inference-Header-Content-Length: %d\r\n" % len(head)
    return _body(f"T-9{letter}", what, head + b"\0\0\0\0", _DROP_IN, fields)


SHAPES: Final = (
    _shape("a", "negative dimension", b"[-1]"),
    _shape("b", "empty dimension", b"[0]"),
    _shape("c", "product over 2^64", b"[9223372036854775807, 2]"),
    _shape("d", "1,000 dimensions", b"[" + b"1," * 999 + b"1]"),
    _shape("e", "fraction", b"[1.5]"),
    _shape("f", "string", b'["1"]'),
    _shape("g", "exponent", b"[1e400]"),
    _binary("a", "negative size", b"-4"),
    _binary("b", "size over the body", b"4000"),
    _binary("c", "size over 2^64", b"99999999999999999999"),
    _binary("d", "size of letters", b'"4"'),
)


def _target(id: str, what: str, target: bytes, source: str) -> Row:
    """An odd path that passes as it is: no Triton knows such a route."""
    line = b"POST " + target + b" HTTP/1.1"
    wire = post(b"Content-Length: 5\r\n", HELLO, line)
    return _passes(id, what, wire, source, holds=(line,), body=HELLO)


def _bad_target(id: str, what: str, target: bytes, source: str) -> Row:
    wire = post(b"Content-Length: 5\r\n", HELLO, b"POST " + target + b" HTTP/1.1")
    return Row(id, what, wire, 400, source)


MODELS: Final = (
    _bad_target("T-10a", "parent", b"/v2/models/../infer", _NAME),
    _bad_target("T-10b", "itself, encoded", b"/v2/models/%2E/infer", _NAME),
    _bad_target("T-10c", "NUL, encoded", b"/v2/models/a%00b/infer", _NAME),
    # Raw UTF-8 is escaped, so that it is the same as T-10l to whoever logs it.
    _passes("T-10d", "override of direction",
            post(b"Content-Length: 5\r\n", HELLO, b"POST /v2/models/a\xe2\x80\xae/infer HTTP/1.1"),
            _NAME, holds=(b"POST /v2/models/a%E2%80%AE/infer HTTP/1.1",), body=HELLO),
    _bad_target("T-10e", "parent and more", b"/v2/models/../x/infer", _NAME),
    _bad_target("T-10f", "parent, encoded", b"/v2/models/%2e%2E/infer", _NAME),
    _gate("T-10g", "slash, encoded", _infer(b"", model=b"a%2Fb"), _NAME),
    _gate("T-10h", "backslash, encoded", _infer(b"", model=b"a%5cb"), _NAME),
    _gate("T-10i", "backslash", _infer(b"", model=b"a\\b"), _NAME),
    _gate("T-10j", "256 bytes", _infer(b"", model=b"m" * 256), _NAME),
    _gate("T-10k", "1,025 bytes", _infer(b"", model=b"m" * 1025), _NAME),
    _target("T-10l", "escapes", b"/v2/models/a%20b%E2%80%AE/infer", _NAME),
    _target("T-10m", "255 bytes", b"/v2/models/" + b"m" * 255 + b"/infer", _NAME),
    _target("T-10n", "empty", b"/v2/models//infer", _NAME),
    _target("T-10o", "two segments", b"/v2/models/a/b/infer", _NAME),
    _target("T-11a", "negative version", b"/v2/models/m/versions/-1/infer", _VERSION),
    _target("T-11b", "leading zero", b"/v2/models/m/versions/01/infer", _VERSION),
    _target("T-11c", "version of letters", b"/v2/models/m/versions/abc/infer", _VERSION),
    _gate("T-11d", "version of twenty digits",
          _infer(b"", model=b"m/versions/99999999999999999999"), _VERSION),
    _gate("T-11e", "version 2^63", _infer(b"", model=b"m/versions/9223372036854775808"),
          _VERSION),
)  # fmt: skip

_RESERVED: Final = b"triton_python_backend_shm_region_"
_KEY: Final = b'{"key":"/%b7","offset":0,"byte_size":64}' % _RESERVED


def _register(path: bytes, body: bytes) -> bytes:
    return post(
        b"Content-Length: %d\r\n" % len(body), body, b"POST /v2/%b/register HTTP/1.1" % path
    )


_REGION_PATH: Final = b"systemsharedmemory/region/"
_ESCAPED: Final = _KEY.replace(b"t", b"\\u0074")
REGISTRATIONS: Final = (
    _gate("T-15a", "reserved name", _register(_REGION_PATH + _RESERVED + b"7", b'{"key":"/k"}'),
          _REGION),
    _gate("T-15b", "reserved name, encoded", _register(
        b"cudasharedmemory/region/%74riton%5Fpython_backend_shm_region_7", b"{}"), _REGION),
    _gate("T-15c", "reserved key", _register(_REGION_PATH + b"r", _KEY), _REGION),
    _gate("T-15d", "reserved key, escaped", _register(_REGION_PATH + b"r", _ESCAPED), _REGION),
    _gate("T-15e", "reserved key, twice", _register(
        _REGION_PATH + b"r", b'{"key":"/a","key":"/%b7"}' % _RESERVED), _REGION),
    Row("T-15f", "endless registration", _register(
        _REGION_PATH + b"r", b'{"key":"' + b"k" * 200_000 + b'"}'), 400, _REGION,
        of_relay=True),
    _asks("T-15g", "registration", _register(
        _REGION_PATH + b"r", b'{"key":"/k","offset":0,"byte_size":64}'), 200),
)  # fmt: skip
"""With control allowed: who may register at all is another question."""

ROUTES: Final = (
    _passes("T-20a", "redirect of Vertex AI",
            _infer(b"X-Vertex-Ai-Triton-Redirect: v2/repository/models/m/load\r\n"), _REDIRECT,
            body=HELLO, lacks=(b"x-vertex-ai-triton-redirect",)),
    _passes("T-20b", "redirect in another case",
            _infer(b"x-vertex-ai-triton-redirect: v2/logging\r\n"), _REDIRECT, body=HELLO,
            lacks=(b"x-vertex-ai-triton-redirect",)),
    _passes("T-20c", "redirect by underscores",
            _infer(b"X_Vertex_Ai_Triton_Redirect: v2/logging\r\n"), _REDIRECT, body=HELLO,
            lacks=(b"x_vertex_ai_triton_redirect",)),
    _target("T-20d", "SageMaker's inference", b"/invocations", _REDIRECT),
    _target("T-20e", "SageMaker's health", b"/ping", _REDIRECT),
    _target("T-20f", "SageMaker's models", b"/models", _REDIRECT),
    _target("T-20g", "SageMaker's inference of a model", b"/models/x/invoke", _REDIRECT),
    _target("T-20h", "metrics of the server", b"/metrics", _REDIRECT),
    _target("T-20i", "OpenAI", b"/v1/chat/completions", _REDIRECT),
)  # fmt: skip

OPEN: Final = JSON_LENGTH + BODIES + SHAPES + MODELS + REGISTRATIONS + ROUTES
"""For a process with its defaults, which lets clients on this machine control the servers."""


_CONTROL: Final = {
    "T-12a": ("load", b"/v2/repository/models/m/load", _LOAD),
    "T-12b": ("unload", b"/v2/repository/models/m/unload", _LOAD),
    "T-12c": ("load from a repository", b"/v2/repository/foo/models/m/load", _LOAD),
    "T-13": ("log settings", b"/v2/logging", _LOG),
    "T-14a": ("trace settings", b"/v2/trace/setting", _TRACE),
    "T-14b": ("trace settings of a model", b"/v2/models/m/trace/setting", _TRACE),
    "T-15h": ("register", b"/v2/systemsharedmemory/region/r/register", _MEMORY),
    "T-15i": ("unregister", b"/v2/systemsharedmemory/region/r/unregister", _MEMORY),
    "T-15j": ("unregister all", b"/v2/systemsharedmemory/unregister", _MEMORY),
    "T-15k": ("register of CUDA", b"/v2/cudasharedmemory/region/r/register", _MEMORY),
    "T-15l": ("unregister of CUDA", b"/v2/cudasharedmemory/region/r/unregister", _MEMORY),
    "T-15m": ("unregister all of CUDA", b"/v2/cudasharedmemory/unregister", _MEMORY),
}  # fmt: skip
_TRAVERSING: Final = b'{"parameters":{"file:1/../../x":"","log_file":"/tmp/x"}}'


def _spelled(path: bytes) -> dict[str, tuple[bytes, int]]:
    """The same request by other spellings, and its right answer."""
    first, _, rest = path[1:].partition(b"/")
    encoded = b"/%b/%%%02x%b" % (first, rest[0], rest[1:])
    twice = b"/%b/%%25%02x%b" % (first, rest[0], rest[1:])
    body = b"Content-Length: %d\r\n" % len(_TRAVERSING)

    def line(target: bytes, fields: bytes = b"", method: bytes = b"POST") -> bytes:
        return post(body + fields, _TRAVERSING, method + b" " + target + b" HTTP/1.1")

    return {
        "plain": (line(path), 403),
        "with a query": (line(path + b"?x=1"), 403),
        "with an empty query": (line(path + b"?"), 403),
        "absolute form": (line(b"http://b" + path), 400),
        "encoded": (line(encoded), 403),
        "encoded twice": (line(twice), 403),
        "two slashes": (line(b"/" + path.replace(b"/", b"//")[1:]), 403),
        "dot segments": (line(b"/v2/models/.." + path[3:]), 400),
        "slash at the end": (line(path + b"/"), 403),
        "another case": (line(path.upper()), 403),
        "parameters": (line(path + b";a=b"), 403),
        "question mark encoded": (line(path + b"%3fx"), 403),
        "PUT": (line(path, method=b"PUT"), 403),
        "override of the method": (line(path, b"X-HTTP-Method-Override: POST\r\n", b"GET"), 403),
        "upgrade": (line(path, b"Connection: Upgrade\r\nUpgrade: h2c\r\n"), 403),
        "chunked": (
            post(TE, b"2\r\n{}\r\n0\r\n\r\n", b"POST " + path + b" HTTP/1.1"), 403,
        ),
        "in a forwarded path": (line(path, b"X-Original-URL: /v2\r\nX-Rewrite-URL: /v2\r\n"), 403),
    }  # fmt: skip


def _denied() -> tuple[Row, ...]:
    rows = []
    for id, (what, path, source) in _CONTROL.items():
        for number, (spelling, (wire, status)) in enumerate(_spelled(path).items()):
            name = f"{id}.{number}"
            cause = source if spelling == "plain" else _EVASION
            denied = status == 403
            rows.append(Row(name, f"{what}, {spelling}", wire, status, cause, of_relay=denied,
                            keeps=denied))  # fmt: skip
        allowed = get(HOST, b"GET /v2/models/m/ready HTTP/1.1")
        line = b"POST " + path + b" HTTP/1.1"
        load = post(b"Content-Length: 2\r\n", b"{}", line)
        rows.append(Row(f"{id}.p", f"{what}, behind an allowed request", allowed + load, 200,
                        _EVASION, 1, (403,), of_relay=True, keeps=True))  # fmt: skip
        old = post(b"Content-Length: 2\r\n", b"{}", b"POST " + path + b" HTTP/1.0")
        rows.append(Row(f"{id}.o", f"{what}, HTTP/1.0", old, 403, _EVASION, of_relay=True))
        rows.append(_body(f"{id}.b", f"{what}, in the body of an infer request",
                          get(b"Host: smuggled\r\n", line), _EVASION))  # fmt: skip
    return tuple(rows)


DENIED: Final = _denied()
"""For a process where nobody may control the servers."""
ALLOWED: Final = (
    _asks("T-12r", "index of the repository",
          post(b"Content-Length: 0\r\n", b"", b"POST /v2/repository/index HTTP/1.1"), 502),
    _asks("T-13r", "looking at log settings", get(HOST, b"GET /v2/logging HTTP/1.1"), 502),
    _asks("T-14r", "looking at trace settings", get(HOST, b"GET /v2/trace/setting HTTP/1.1"), 502),
    _asks("T-15r", "status of shared memory",
          get(HOST, b"GET /v2/systemsharedmemory/status HTTP/1.1"), 502),
    _asks("T-16r", "statistics", get(HOST, b"GET /v2/models/stats HTTP/1.1"), 502),
    _passes("T-18r", "configuration", get(HOST, b"GET /v2/models/m/config HTTP/1.1")),
)  # fmt: skip
"""What only looks passes there as well."""

LIMITED: Final = (
    Row("T-4a", "too long by its length", post(b"Content-Length: 1048577\r\n", b""), 413,
        "CVE-2025-33201, CVE-2025-33202; RFC 9110 15.5.14", of_relay=True),
    Row("T-4b", "too long by its chunks", post(TE, b"100001\r\n" + b"x" * 1_048_577 + b"\r\n"),
        413, "CVE-2025-33201, CVE-2025-33202; RFC 9110 15.5.14", of_relay=True, late=True),
    _passes("T-4c", "as long as may be", post(b"Content-Length: 1048576\r\n", b"x" * 1_048_576),
            body=b"x" * 1_048_576),
    _passes("T-4d", "as long as may be, in chunks",
            post(TE, b"100000\r\n" + b"x" * 1_048_576 + b"\r\n0\r\n\r\n"),
            body=b"x" * 1_048_576),
)  # fmt: skip
"""For a process with `limits.body_bytes: 1MiB`."""

DEVIATIONS: Final[dict[str, str]] = {
    "T-3": "Bodies are not parsed here, so nesting is no danger to us; a Triton has its own limit.",
    "T-4": "There is no limit on bodies by default: a balancer must not lower the servers' limits. "
    "`limits.body_bytes` sets one.",
    "T-5": "Compressed bodies pass as they are: Triton's clients send them, and nothing here "
    "inflates them.",
    "T-7": "Bodies are not parsed here; a Triton checks the outputs that are asked for.",
    "T-8": "Shared memory is a feature of Triton's own clients. Who may register regions is a "
    "question of control; reserved names are refused there.",
    "T-10n": "No route of a Triton has an empty name; unknown paths pass, and Triton answers 404.",
    "T-11a": "A Triton's routes have versions of digits only; other paths pass, and it answers "
    "404.",
    "T-11b": "Triton reads a version as a number, so a leading zero is legal.",
    "T-16": "A cancelled stream is cancelled at the Triton; draining it instead would keep the GPU "
    "busy for nobody.",
    "T-19": "Unknown models are not remembered: a model may be loaded at any moment. Metrics cap "
    "their names.",
    "T-20d": "Unknown paths pass, and Triton answers 404 unless SageMaker or Vertex AI are "
    "switched on there. The field that redirects them is taken off.",
}
"""Rows whose right answer differs from the review's, and why."""

ALL: Final = OPEN + DENIED + ALLOWED + LIMITED
