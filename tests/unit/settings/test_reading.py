"""From text to settings: one case per way in which a file can be wrong, with its exact message."""

# ruff: noqa: E501 - a case stands on one line
from __future__ import annotations

from pathlib import Path

import pytest

from lb.domain.backend import Address
from lb.settings.model import Settings
from lb.settings.problems import MAX_PROBLEMS, MORE_PROBLEMS, SettingsError, shown
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
    "backend as a word": (LISTEN + "backends: [gpu-0]", ["2 backends[0]: expected a mapping such as {name: ...}, got 'gpu-0'"]),
    "backend without a value": (LISTEN + "backends:\n  -\n", ["3 backends[0]: expected a mapping such as {name: ...}, got nothing"]),
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
    "section that is a word": (GOOD + "timeouts: 5s", ["3 timeouts: expected a mapping such as {connect: ...}, got '5s'"]),
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
    "setting of a model": (GOOD + "models: {resnet: {color: 1}}", ["3 models.resnet.color: unknown key; docs/configuration.md has all keys"]),
    "variants without weights": (GOOD + "models: {m: {variants: [{name: a, model: m}, {name: b, model: n}]}}", ["3 models.m.variants: the weights add up to 0, so that nobody would get a request"]),
    "variant with variants": (GOOD + "models:\n  m: {variants: [{name: a, model: n, weight: 1}]}\n  n: {variants: [{name: a, model: m, weight: 1}]}", ["4 models.m.variants[0].model: 'n' has variants itself; name the model", "5 models.n.variants[0].model: 'm' has variants itself; name the model"]),
    "variant without a model": (GOOD + "models: {m: {variants: [{name: a, weight: 1}]}}", ["3 models.m.variants[0].model: is required"]),
    "what needs variants that cannot be read": (GOOD + "models: {m: {rollback: {errors: 2x}, shadow: {model: c}, variants: [{name: a, model: m, weight: -1}]}}", ["3 models.m.variants[0].weight: expected at least 0, got -1"]),
    "two variants of one name": (GOOD + "models: {m: {variants: [{name: a, model: m, weight: 1}, {name: a, model: n, weight: 1}]}}", ["3 models.m.variants[1].name: variants[0] has the same name"]),
    "two variants of one model": (GOOD + "models: {m: {variants: [{name: a, model: m, weight: 1}, {name: b, model: m, weight: 1}]}}", ["3 models.m.variants[1].model: variants[0] is the same model and version"]),
    "variant on an unknown backend": (GOOD + "models: {m: {variants: [{name: a, model: m, weight: 1, backends: [gpu-9]}]}}", ["3 models.m.variants[0].backends: there is no backend 'gpu-9'"]),
    "sticky by nothing known": (GOOD + "models: {m: {sticky: cookie, variants: [{name: a, model: m, weight: 1}]}}", ["3 models.m.sticky: expected none, sequence, tenant or header:NAME, got 'cookie'"]),
    "sticky by tenants that are none": (GOOD + "models: {m: {sticky: tenant, variants: [{name: a, model: m, weight: 1}]}}", ["3 models.m.sticky: tenant needs scheduling.tenants"]),
    "ramp of a single variant": (GOOD + "models: {m: {ramp: {to: 50, over: 1h}, variants: [{name: a, model: m, weight: 1}]}}", ["3 models.m.ramp: needs a second variant"]),
    "ramp down": (GOOD + "models: {m: {ramp: {to: 50, over: 1h}, variants: [{name: a, model: m, weight: 1}, {name: b, model: n, weight: 1}]}}", ["3 models.m.ramp.to: the share of the last variant is 50 percent already"]),
    "rollback without variants": (GOOD + "models: {m: {rollback: {errors: 2x}}}", ["3 models.m.rollback: needs variants"]),
    "rollback by no factor": (GOOD + "models: {m: {rollback: {errors: twice}, variants: [{name: a, model: m, weight: 1}, {name: b, model: n, weight: 1}]}}", ["3 models.m.rollback.errors: expected a factor such as 2x or 1.5x, got 'twice'"]),
    "variable that is not set": (GOOD + "access_log: {path: '${LOGS}'}", ["3 access_log.path: environment variable LOGS is not set"]),
    "file that is not there": (
        LISTEN + "backends:\n  - http: a:1\n    headers:\n      authorization: ${file:/none}\n",
        ["5 backends[0].headers.authorization: cannot read /none: No such file or directory"],
    ),
    "tab before a key": ('\t- x', ['1 not valid YAML: a tab; indent with spaces']),
    "list instead of a mapping": ('- listen\n', ['1 expected a mapping with listen and backends']),
    "text instead of a mapping": ('127.0.0.1:8000', ['1 expected a mapping with listen and backends']),
    "two documents": (GOOD + '---\nlisten: {http: 127.0.0.1:8000, grpc: 127.0.0.1:8001}\n' + BACKENDS, ['3 not valid YAML: expected a single document in the stream, but found another document']),
    "section given twice": (GOOD + 'backends: []', ['3 backends: given twice, first on line 2']),
    "key that is a list": (GOOD + '? [a]\n: b\n', ['3 a key must be a word']),
    "indentation that does not fit": (GOOD + 'log:\n  level: info\n format: json\n', ['5 not valid YAML: the indentation does not fit the lines above']),
    "section in capitals": ('LISTEN: {http: 127.0.0.1:8000, grpc: 127.0.0.1:8001}\n' + BACKENDS, ['1 LISTEN: unknown key; did you mean listen?']),
    "section that is a switch": (GOOD + 'hedging: true', ['3 hedging: expected a mapping such as {enabled: ...}, got true']),
    "section by another product's word": (LISTEN + "upstreams: [{http: 'a:1'}]", ['2 upstreams: unknown key; did you mean backends?']),
    "setting without its section": (GOOD + 'max_requests_per_backend: 4', ['3 max_requests_per_backend: unknown key; did you mean scheduling.max_requests_per_backend?']),
    "setting in another section": (GOOD + 'limits: {connect: 5s}', ['3 limits.connect: unknown key; did you mean timeouts.connect?']),
    "backend by address": (LISTEN + "backends: [{address: 'a:1'}]", ['2 backends[0].address: unknown key; did you mean http?']),
    "backend by URL": (LISTEN + "backends: [{url: 'http://a:1'}]", ['2 backends[0].url: unknown key; did you mean http?']),
    "backend with a port of its own key": (LISTEN + "backends: [{http: 'a:1', port: 3}]", ['2 backends[0].port: unknown key; docs/configuration.md has all keys']),
    "port alone": (LISTEN + 'backends: [{http: 18000}]', ['2 backends[0].http: expected HOST:PORT, [IPV6]:PORT or unix:PATH, got 18000']),
    "host alone": (LISTEN + 'backends: [{http: gpu-1}]', ["2 backends[0].http: expected HOST:PORT, [IPV6]:PORT or unix:PATH, got 'gpu-1'"]),
    "address with a path": (LISTEN + "backends: [{http: 'gpu-1:8000/v2'}]", ["2 backends[0].http: drop the path: expected HOST:PORT, [IPV6]:PORT or unix:PATH, got 'gpu-1:8000/v2'"]),
    "gRPC address with a scheme": (LISTEN + "backends: [{grpc: 'grpc://a:1'}]", ["2 backends[0].grpc: drop grpc://: expected HOST:PORT, [IPV6]:PORT or unix:PATH, got 'grpc://a:1'"]),
    "IPv6 address that is none": (LISTEN + "backends: [{http: '[::g]:1'}]", ["2 backends[0].http: '::g' is not an IPv6 address"]),
    "Unix socket without a path": (LISTEN + "backends: [{http: 'unix:'}]", ['2 backends[0].http: a Unix socket needs a path: unix:/run/name.sock']),
    "certificate without a key": (LISTEN + "backends: [{http: 'a:1', tls: {certificate: a}}]", ['2 backends[0].tls.certificate: needs key, too']),
    "key without a certificate": (LISTEN + "backends: [{http: 'a:1', tls: {key: a}}]", ['2 backends[0].tls.key: needs certificate, too']),
    "TLS as a switch": (LISTEN + "backends: [{http: 'a:1', tls: true}]", ['2 backends[0].tls: expected a mapping such as {ports: ...}, got true']),
    "shared memory as a word": (LISTEN + "backends: [{http: 'a:1', shared_memory: yes}]", ["2 backends[0].shared_memory: expected true, false or auto, got 'yes'"]),
    "weight with a unit": (LISTEN + "backends: [{http: 'a:1', weight: 2x}]", ["2 backends[0].weight: expected a number, got '2x'"]),
    "weight without end": (LISTEN + "backends: [{http: 'a:1', weight: .inf}]", ["2 backends[0].weight: expected a number, got '.inf'"]),
    "listeners as a port": ('listen: 8000\n' + BACKENDS, ['1 listen: expected a mapping such as {http: ...}, got 8000']),
    "listener on a star": ("listen: {http: '*:8000'}\n" + BACKENDS, ["1 listen.http: expected HOST:PORT, [IPV6]:PORT or unix:PATH, got '*:8000'"]),
    "listener without a host": ("listen: {http: ':8000'}\n" + BACKENDS, ["1 listen.http: expected HOST:PORT, [IPV6]:PORT or unix:PATH, got ':8000'"]),
    "listener with a misspelt key": ("listen: {http: {adress: 'a:1'}}\n" + BACKENDS, ['1 listen.http.adress: unknown key; did you mean address?']),
    "TLS without certificates": ("listen: {http: {address: 'a:1', tls: {}}}\n" + BACKENDS, ['1 listen.http.tls.certificates: is required']),
    "HTTPS with bad TLS that gRPC shares": ("listen: {https: {address: '127.0.0.1:8443', tls: {}}, grpcs: '127.0.0.1:8443'}\n" + BACKENDS, ['1 listen.https.tls.certificates: is required']),
    "half of a character": ('{"listen": {"http": "127.0.0.1:8000"},\n"backends": [{"name": "\\ud83d", "http": "a:1"}]}', ["2 backends[0].name: \\ud83d is half of a pair of surrogates, without the other"]),
    "HTTPS without TLS": ("listen: {https: '127.0.0.1:8443'}\n" + BACKENDS, ['1 listen.https: needs tls']),
    "admin API open to all": ("listen: {http: '127.0.0.1:8000', admin: '0.0.0.0:8003'}\n" + BACKENDS, ['1 listen.admin: 0.0.0.0:8003 can be reached from elsewhere: needs an access.tokens entry with the role read or operate, or admin.insecure']),
    "PROXY protocol from anyone": ("listen: {http: {address: '127.0.0.1:8000', proxy_protocol: true}}\n" + BACKENDS, ['1 listen.http.proxy_protocol: needs listen.trusted_proxies']),
    "network with bits beyond its length": ("listen: {http: '127.0.0.1:80', trusted_proxies: [10.0.0.1/8]}\n" + BACKENDS, ["1 listen.trusted_proxies[0]: expected a network such as 192.0.2.0/24, got '10.0.0.1/8': bits are set beyond its length"]),
    "concurrency of zero": (GOOD + 'scheduling: {max_requests_per_backend: 0}', ['3 scheduling.max_requests_per_backend: expected auto, adaptive, off, or a number from 1 to 1000000, got 0']),
    "number as a word": (GOOD + 'retry: {attempts: two}', ["3 retry.attempts: expected a whole number, got 'two'"]),
    "share in percent": (GOOD + 'access_log: {sample: 10%}', ["3 access_log.sample: expected a number, got '10%'"]),
    "quantile in percent": (GOOD + 'hedging: {quantile: 99}', ['3 hedging.quantile: expected at most 0.999, got 99']),
    "duration in words": (GOOD + 'shutdown: {drain: forever}', ["3 shutdown.drain: expected a duration such as 500ms, 1s or 2m, got 'forever'"]),
    "duration with a space": (GOOD + 'timeouts: {connect: 5 s}', ["3 timeouts.connect: expected a duration such as 500ms, 1s or 2m, got '5 s'"]),
    "duration of days": (GOOD + 'shutdown: {drain: 400d}', ["3 shutdown.drain: expected a duration such as 500ms, 1s or 2m, got '400d'"]),
    "duration beyond a year": (GOOD + 'shutdown: {drain: 10000h}', ["3 shutdown.drain: expected a duration of at most 8784h, got '10000h'"]),
    "size with another unit": (GOOD + 'limits: {body_bytes: 10M}', ["3 limits.body_bytes: expected a size such as 65536, 64KiB or 1MiB, got '10M'"]),
    "negative size": (GOOD + 'limits: {body_bytes: -1}', ['3 limits.body_bytes: expected a size such as 65536, 64KiB or 1MiB, got -1']),
    "log level of another product": (GOOD + 'log: {level: warn}', ["3 log.level: expected 'debug', 'info', 'warning' or 'error', got 'warn'"]),
    "log section as a word": (GOOD + 'log: debug', ["3 log: expected a mapping such as {level: ...}, got 'debug'"]),
    "switch that is a word": (GOOD + 'metrics: {backends: yes}', ["3 metrics.backends: expected true or false, got 'yes'"]),
    "switch that is one": (GOOD + 'reload: {watch: 1}', ['3 reload.watch: expected true or false, got 1']),
    "models as a list": (GOOD + 'models: [resnet]', ['3 models: expected a mapping, got a list']),
    "model without settings": (GOOD + 'models: {resnet: 5}', ['3 models.resnet: expected a mapping such as {retry: ...}, got 5']),
    "token that is short": (GOOD + 'access: {tokens: [{name: a, token: short}]}', ['3 access.tokens[0].token: a token is 16 to 512 visible ASCII characters']),
    "token that is not given": (GOOD + 'access: {tokens: [{name: a}]}', ['3 access.tokens[0]: exactly one of token, token_sha256 and file is needed']),
    "token without a name": (GOOD + 'access: {tokens: [{file: /x}]}', ['3 access.tokens[0].name: is required']),
    "role that is none": (GOOD + 'access: {tokens: [{name: a, file: /x, roles: [admin]}]}', ["3 access.tokens[0].roles[0]: expected 'infer', 'control', 'read' or 'operate'"]),
    "two tokens of one name": (GOOD + 'access: {tokens: [{name: a, file: /x}, {name: a, file: /y}]}', ["3 access.tokens[1].name: 'a' is already the name of tokens[0]"]),
    "limit by what is none": (GOOD + 'access: {limits: [{by: ip}]}', ['3 access.limits[0].by: expected address, token or header:NAME']),
    "limit by token without tokens": (GOOD + 'access: {limits: [{by: token, requests_per_second: 5}]}', ['3 access.limits[0].by: there is no token with the role infer or control']),
    "files as a word": (GOOD + 'discovery: {files: backends.yaml}', ["3 discovery.files: expected a list, got 'backends.yaml'"]),
    "DNS name with a space": (GOOD + 'discovery: {dns: [{host: a b, http_port: 80}]}', ["3 discovery.dns[0].host: expected a DNS name, got 'a b'"]),
    "DNS source without a port": (GOOD + 'discovery: {dns: [{host: a}]}', ['3 discovery.dns[0]: at least one of http_port and grpc_port is needed']),
    "Kubernetes source of nothing": (GOOD + 'discovery: {kubernetes: [{}]}', ['3 discovery.kubernetes[0]: service or selector is needed']),
    "host name with a star": (GOOD + "admin: {hosts: ['*']}", ["3 admin.hosts[0]: expected a host name, got '*'"]),
    "affinity that is none": (GOOD + 'sequences: {affinity: sticky}', ["3 sequences.affinity: expected 'least_loaded' or 'rendezvous', got 'sticky'"]),
    "reference without an end": (GOOD + "log: {level: '${'}", ["3 log.level: '${' without '}'; write '$${' for a plain '${'"]),
    "reference that is no name": (GOOD + "log: {level: '${1X}'}", ["3 log.level: expected ${NAME}, ${NAME:-DEFAULT} or ${file:PATH}, got '${1X}'"]),
    "default with a dash alone": (GOOD + "log: {level: '${LEVEL-info}'}", ["3 log.level: expected ${NAME}, ${NAME:-DEFAULT} or ${file:PATH}, got '${LEVEL-info}'"]),
    "default that is no level": (GOOD + "log: {level: '${LEVEL:-loud}'}", ["3 log.level: expected 'debug', 'info', 'warning' or 'error', got '${LEVEL:-loud}'"]),
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


@pytest.mark.parametrize(
    "text",
    [
        f"backends: [{'a,' * 5000}]",
        f"backends: [{'{http: a},' * 2000}]",
        "backends: [{http: 'a:1'}]\n" + "".join(f"k{number}: 1\n" for number in range(5000)),
    ],
)
def test_of_very_many_problems_enough_are_looked_for(text: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read(f"listen: {{http: '127.0.0.1:80'}}\n{text}")
    assert len(raised.value.problems) == MAX_PROBLEMS + 1
    assert raised.value.problems[-1] == MORE_PROBLEMS


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
    with pytest.raises(
        SettingsError, match=r"^listen: expected a mapping such as \{http: \.\.\.\}, got 'x'$"
    ):
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
