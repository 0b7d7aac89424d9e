"""From text to settings: one case per way in which a file can be wrong, with its exact message."""

# ruff: noqa: E501 - a case stands on one line
from __future__ import annotations

from pathlib import Path

import pytest

from lb.domain.backend import Address
from lb.settings.model import Settings
from lb.settings.problems import SettingsError, shown
from lb.settings.reading import read_settings
from lb.settings.scheduling import PolicyName

LISTEN = "listen: {http: 127.0.0.1:8000, grpc: 127.0.0.1:8001}\n"
BACKENDS = "backends: [{name: gpu-0, http: 127.0.0.1:18000}]\n"
GOOD = LISTEN + BACKENDS
"""Two lines; what a case adds stands on line 3."""
EXPECTED_ADDRESS = "expected HOST:PORT, [IPV6]:PORT or unix:PATH, got"


def read_file(path: str) -> str:
    if path == "/run/token":
        return "secret\n"
    raise FileNotFoundError(2, "No such file or directory", path)


def read(text: str, **listen: str) -> Settings:
    return read_settings(text, {"HOST": "10.0.0.1", "WEIGHT": "2.5"}, read_file, listen)


def problems(text: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read(text)
    return [f"{problem.line} {problem}" for problem in caught.value.problems]


BROKEN = {
    "empty file": ("", ["0 the file is empty"]),
    "cut off in the middle": (LISTEN + "backends: [{name: gpu-0, ht", ["2 not valid YAML: expected ',' or '}', but got '<stream end>'"]),
    "nothing given": ("{}", ["0 listen: is required", "0 backends: is required"]),
    "no backends": (LISTEN, ["0 backends: is required"]),
    "empty list of backends": (LISTEN + "backends: []", ["2 backends: at least one is needed"]),
    "backends as a mapping": (LISTEN + "backends: {a: {http: 'b:1'}}", ["2 backends: expected a list, got a mapping"]),
    "backend as a word": (LISTEN + "backends: [gpu-0]", ["2 backends[0]: expected a mapping, got 'gpu-0'"]),
    "backend without a value": (LISTEN + "backends:\n  -\n", ["3 backends[0]: expected a mapping, got nothing"]),
    "backend without address": (LISTEN + "backends: [{name: a}]", ["2 backends[0]: at least one of http and grpc is needed"]),
    "bad address in the third backend": (
        LISTEN + "backends:\n  - http: a:1\n  - http: b:1\n  - http: c:1\n    grpc: x\n",
        [f"6 backends[2].grpc: {EXPECTED_ADDRESS} 'x'"],
    ),
    "address with a scheme": (LISTEN + "backends: [{http: 'http://a:1'}]", [f"2 backends[0].http: drop http://: {EXPECTED_ADDRESS} 'http://a:1'"]),
    "port too high": (LISTEN + "backends: [{http: 'a:70000'}]", ["2 backends[0].http: port must be 0 to 65535, got '70000'"]),
    "backend at port 0": (LISTEN + "backends: [{http: 'a:0'}]", ["2 backends[0].http: a backend's port must be 1 to 65535, got 0"]),
    "two backends of one name": (
        LISTEN + "backends:\n  - {name: a, http: 'a:1'}\n  - {name: a, http: 'b:1'}\n",
        ["4 backends[1].name: 'a' is already the name of backends[0]"],
    ),
    "one backend twice, without names": (
        LISTEN + "backends:\n  - {http: 'a:1'}\n  - {http: 'a:1'}\n",
        ["4 backends[1].name: 'a:1' is already the name of backends[0]"],
    ),
    "name with a slash": (LISTEN + "backends: [{name: a/b, http: 'a:1'}]", ["2 backends[0].name: expected a printable name without slashes, got 'a/b'"]),
    "name that is a number": (LISTEN + "backends: [{name: 5, http: 'a:1'}]", ["2 backends[0].name: expected text (put it in quotes), got 5"]),
    "name too long": (LISTEN + f"backends: [{{name: {'x' * 254}, http: 'a:1'}}]", ["2 backends[0].name: expected at most 253 characters"]),
    "unknown kind": (LISTEN + "backends: [{http: 'a:1', kind: tritn}]", ["2 backends[0].kind: expected 'triton', 'kserve', 'tfserving' or 'generic', got 'tritn'"]),
    "weight of zero": (LISTEN + "backends: [{http: 'a:1', weight: 0}]", ["2 backends[0].weight: expected more than 0, got 0"]),
    "weight that is true": (LISTEN + "backends: [{http: 'a:1', weight: true}]", ["2 backends[0].weight: expected a number, got true"]),
    "negative max_requests": (LISTEN + "backends: [{http: 'a:1', max_requests: -1}]", ["2 backends[0].max_requests: expected at least 0, got -1"]),
    "header with a line break": (LISTEN + 'backends: [{http: "a:1", headers: {x: "secret\\r\\nb: c"}}]', ["2 backends[0].headers.x: a header value is one line of visible ASCII, without spaces around it"]),
    "header name with a space": (LISTEN + "backends: [{http: 'a:1', headers: {a b: c}}]", ["2 backends[0].headers.a b: not a valid header name"]),
    "header that is a number": (LISTEN + "backends: [{http: 'a:1', headers: {x: 12345}}]", ["2 backends[0].headers.x: expected text (put it in quotes)"]),
    "bad health of one backend": (LISTEN + "backends: [{http: 'a:1', health: {fall: 0}}]", ["2 backends[0].health.fall: expected at least 1, got 0"]),
    "no listener": ("listen: {}\n" + BACKENDS, ["1 listen: at least one of http and grpc is needed"]),
    "only metrics": ("listen: {metrics: 'a:1'}\n" + BACKENDS, ["1 listen: at least one of http and grpc is needed"]),
    "listener without host": ("listen: {http: 8000}\n" + BACKENDS, [f"1 listen.http: {EXPECTED_ADDRESS} 8000"]),
    "listener mapping without address": ("listen: {http: {}}\n" + BACKENDS, ["1 listen.http.address: is required"]),
    "listener mapping with a bad address": ("listen:\n  http:\n    address: ':80'\n" + BACKENDS, [f"3 listen.http.address: {EXPECTED_ADDRESS} ':80'"]),
    "two listeners at one address": ("listen: {http: 'a:1', metrics: 'a:1'}\n" + BACKENDS, ["1 listen.metrics: a:1 is already taken by listen.http"]),
    "listener at a backend's address": (
        "listen: {http: 127.0.0.1:18000}\n" + BACKENDS,
        ["2 backends[0].http: 127.0.0.1:18000 is our own listener listen.http"],
    ),
    "unknown section": (GOOD + "balancng: {}", ["3 balancng: unknown key; did you mean balancing?"]),
    "unknown key": (GOOD + "health:\n  intervall: 1s", ["4 health.intervall: unknown key; did you mean interval?"]),
    "key by its former name": (GOOD + "shutdown: {settle: 5s}", ["3 shutdown.settle: unknown key; did you mean pre_stop_delay?"]),
    "section by its former name": (GOOD + "control: {rolling: true}", ["3 control: unknown key; did you mean fan_out?"]),
    "key of a model by its former name": (GOOD + "models: {m: {concurrency: 4}}", ["3 models.m.concurrency: unknown key; did you mean max_requests_per_backend?"]),
    "key like no other": (GOOD + "log: {zzz: 1}", ["3 log.zzz: unknown key; expected level or format"]),
    "key given twice": (GOOD + "log: {}\nlog: {}", ["4 log: given twice, first on line 3"]),
    "section that is a word": (GOOD + "timeouts: 5s", ["3 timeouts: expected a mapping, got '5s'"]),
    "unknown policy": (GOOD + "balancing: {policy: least}", ["3 balancing.policy: expected 'least_loaded', 'least_latency', 'least_requests' or 'round_robin', got 'least'"]),
    "unknown probe": (GOOD + "health: {probe: udp}", ["3 health.probe: expected 'auto', 'http', 'grpc' or 'tcp', got 'udp'"]),
    "probe interval of zero": (GOOD + "health: {interval: 0}", ["3 health.interval: expected more than 0, got 0"]),
    "no expected status": (GOOD + "health: {expected_status: []}", ["3 health.expected_status: at least one is needed"]),
    "expected status that is none": (GOOD + "health: {expected_status: [200, 99]}", ["3 health.expected_status[1]: expected at least 200, got 99"]),
    "probe path without slash": (GOOD + "health: {http_path: ready}", ["3 health.http_path: expected a path such as /v2/health/ready, got 'ready'"]),
    "duration without unit we know": (GOOD + "timeouts: {connect: 1d}", ["3 timeouts.connect: expected a duration such as 500ms, 1s or 2m, got '1d'"]),
    "negative duration": (GOOD + "shutdown: {drain: -5}", ["3 shutdown.drain: expected a duration such as 500ms, 1s or 2m, got -5"]),
    "size in decimal units": (GOOD + "limits: {head_bytes: 64KB}", ["3 limits.head_bytes: expected a size such as 65536, 64KiB or 1MiB, got '64KB'"]),
    "window larger than HTTP/2 knows": (GOOD + "limits: {stream_window_max_bytes: 2GiB}", ["3 limits.stream_window_max_bytes: expected at most 2147483647, got '2GiB'"]),
    "headers that are no whole number": (GOOD + "limits: {max_headers: 99.5}", ["3 limits.max_headers: expected a whole number, got 99.5"]),
    "line longer than the head": (GOOD + "limits: {request_line_bytes: 64KiB}", ["3 limits.head_bytes: 32KiB is less than limits.request_line_bytes (64KiB)"]),
    "window larger than it may grow": (GOOD + "limits: {stream_window_bytes: 8MiB}", ["3 limits.stream_window_max_bytes: 4MiB is less than limits.stream_window_bytes (8MiB)"]),
    "memory less than one window": (GOOD + "limits: {memory_bytes: 1MiB}", ["3 limits.memory_bytes: 1MiB is less than limits.stream_window_max_bytes (4MiB)"]),
    "no attempts": (GOOD + "retry: {attempts: 0}", ["3 retry.attempts: expected at least 1, got 0"]),
    "sample above one": (GOOD + "access_log: {sample: 5}", ["3 access_log.sample: expected at most 1, got 5"]),
    "sample that is no number": (GOOD + "access_log: {sample: .nan}", ["3 access_log.sample: expected a number, got '.nan'"]),
    "log file without a name": (GOOD + "access_log: {path: ''}", ["3 access_log.path: must not be empty"]),
    "switch that is a number": (GOOD + "metrics: {backends: 7}", ["3 metrics.backends: expected true or false, got 7"]),
    "forwarded as a boolean": (GOOD + "forwarded: true", ["3 forwarded: expected 'off', 'x_forwarded', 'forwarded' or 'both', got true"]),
    "setting of a model": (GOOD + "models: {resnet: {split: 1}}", ["3 models.resnet.split: unknown key; expected retry, attempt_timeout, max_requests_per_backend, max_queue_size or priority"]),
    "variable that is not set": (GOOD + "access_log: {path: '${LOGS}'}", ["3 access_log.path: environment variable LOGS is not set"]),
    "file that is not there": (
        LISTEN + "backends:\n  - http: a:1\n    headers:\n      authorization: ${file:/none}\n",
        ["5 backends[0].headers.authorization: cannot read /none: No such file or directory"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), BROKEN.values(), ids=list(BROKEN))
def test_a_broken_file_is_refused_with_line_path_and_reason(text: str, expected: list[str]) -> None:
    assert problems(text) == expected


def test_everything_wrong_with_a_file_is_told_at_once_in_the_order_of_the_file() -> None:
    assert problems(
        "listen:\n"
        "  http: 127.0.0.1:8000\n"
        "  metrics: 127.0.0.1:8000\n"
        "  admin: 8003\n"
        "backends:\n"
        "  - {http: 127.0.0.1:8000, weight: -1}\n"
        "  - {grpc: '${NOWHERE}'}\n"
        "  - {name: a}\n"
        "health: {rise: 0, fal: 2}\n"
        "limits: {stream_window_bytes: 1, head_bytes: 4KiB}\n"
    ) == [
        "3 listen.metrics: 127.0.0.1:8000 is already taken by listen.http",
        f"4 listen.admin: {EXPECTED_ADDRESS} 8003",
        "6 backends[0].weight: expected more than 0, got -1",
        "6 backends[0].http: 127.0.0.1:8000 is our own listener listen.http",
        "7 backends[1].grpc: environment variable NOWHERE is not set",
        "8 backends[2]: at least one of http and grpc is needed",
        "9 health.rise: expected at least 1, got 0",
        "9 health.fal: unknown key; did you mean fall?",
        "10 limits.stream_window_bytes: expected at least 65535, got 1",
        "10 limits.head_bytes: 4KiB is less than limits.request_line_bytes (8KiB)",
    ]


def test_a_good_file_becomes_settings() -> None:
    settings = read(
        LISTEN
        + "backends:\n"
        + "  - http: ${HOST}:${PORT:-18000}\n"
        + "    weight: ${WEIGHT}\n"
        + "    headers: {authorization: 'Bearer ${file:/run/token}'}\n"
        + "balancing: {policy: round_robin}\n"
        + "health: {interval: 250ms}\n"
        + "limits: {head_bytes: 64KiB}\n"
        + "forwarded: off\n"
        + "models: {}\n"
    )
    [spec] = settings.specs()
    assert spec.http == Address("10.0.0.1", 18000)
    assert spec.weight == 2.5
    assert spec.headers == (("authorization", "Bearer secret"),)
    assert settings.balancing.policy is PolicyName.ROUND_ROBIN
    assert settings.health.interval == 0.25
    assert settings.limits.head_bytes == 65536


def test_a_section_without_a_value_keeps_its_defaults() -> None:
    assert read(GOOD + "health:\nlog: ~\n") == read(GOOD)


def test_one_port_may_serve_both_protocols() -> None:
    listen = read("listen: {http: 127.0.0.1:8000, grpc: 127.0.0.1:8000}\n" + BACKENDS).listen
    assert listen.http == listen.grpc


def test_given_listeners_replace_those_of_the_text() -> None:
    listen = read(GOOD, http="127.0.0.1:9000", admin="127.0.0.1:9003").listen
    assert listen.http is not None
    assert listen.grpc is not None
    assert listen.admin is not None
    assert [str(listener.address) for listener in (listen.http, listen.grpc, listen.admin)] == [
        "127.0.0.1:9000",
        "127.0.0.1:8001",
        "127.0.0.1:9003",
    ]
    assert read(BACKENDS, grpc="127.0.0.1:0").listen.grpc is not None


def test_given_listeners_do_not_hide_a_broken_file() -> None:
    with pytest.raises(SettingsError, match=r"^the file is empty$"):
        read("", http="127.0.0.1:9000")
    with pytest.raises(SettingsError, match=r"^listen: expected a mapping, got 'x'$"):
        read("listen: x\n" + BACKENDS, http="127.0.0.1:9000")


def test_an_address_from_the_command_line_keeps_the_tls_of_its_listener() -> None:
    text = (
        "listen: {http: {address: 'a:1', tls: {certificates: [{certificate: c, key: k}]}}}\n"
        + BACKENDS
    )
    http = read(text, http="127.0.0.1:7").listen.http
    assert http is not None
    assert str(http.address) == "127.0.0.1:7"
    assert http.tls is not None


def test_paths_remember_what_they_were_made_of() -> None:
    text = (
        "listen: {http: {address: '127.0.0.1:0', tls: {certificates: "
        "[{certificate: '/${X}/crt', key: '/${X}/key'}]}}}\n"
        "backends: [{http: 'a:1', tls: {ca: '/${X}/ca'}}]\n"
        "discovery: {files: ['/${X}/list']}\n"
        "access_log: {path: '/${X}/log'}\n"
        "access: {tokens: [{name: a, file: '/${X}/tokens'}]}\n"
    )
    settings = read_settings(text, {"X": "hunter2"}, lambda path: Path(path).read_text())
    (backend,), (token,) = settings.backends, settings.access.tokens
    listener = settings.listen.http
    assert listener is not None
    assert listener.tls is not None
    assert backend.tls is not None
    (pair,) = listener.tls.certificates
    paths = {
        "crt": pair.certificate,
        "key": pair.key,
        "ca": backend.tls.ca,
        "list": settings.discovery.files[0],
        "log": settings.access_log.path,
        "tokens": token.file,
    }
    for name, path in paths.items():
        assert path == f"/hunter2/{name}"
        assert shown(path or "") == f"/${{X}}/{name}"
