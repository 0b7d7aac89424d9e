"""Every operation of the admin API, asked of a running process: each answer is what the process's
own OpenAPI document says."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from lb.simulator.process import Ports
from tests.fakes.process import wait_until
from tests.fakes.serving import Serving
from tests.integration.test_process import sleeping_request
from tests.unit.admin.schema import answer_problems, is_valid_body

OF_THE_PAGE = {"/api/v1/live/events", "/api/v1/session"}
"""Events that do not end, and sessions, which need no token: test_live.py and test_page.py."""
READ, OPERATE, CONTROL = (f"{role}-secret-0123456789" for role in ("read", "operate", "control"))
LONG_MS = 60_000
BACKENDS = "/api/v1/backends"
BACKEND = "/api/v1/backends/{name}"
DEFECT = 500
"""The status of answers that no request can bring about."""


def concrete(path: str, name: str = "", model: str = "simple") -> str:
    """A path of the document, of a backend of that name and of a model, one that is there."""
    name = name or ("name" if path.startswith("/api/v1/compare/") else "a")
    return path.replace("{name}", name).replace("{model}", model)


class Admin:
    """The admin API of a process with the backends `a` and `b`, and `c` of a source. Each runs a
    request, another request is queued."""

    def __init__(self, folder: Path, triton: Ports, stack: ExitStack) -> None:
        self.addresses_of_triton = {
            "http": f"127.0.0.1:{triton.http_port}",
            "grpc": f"127.0.0.1:{triton.grpc_port}",
            "metrics": f"127.0.0.1:{triton.metrics_port}",
        }
        found = folder / "found.yaml"
        found.write_text(yaml.safe_dump({"backends": [{"name": "c", **self.addresses_of_triton}]}))
        self.config: dict[str, Any] = {
            "listen": dict.fromkeys(("http", "grpc", "metrics", "admin"), "127.0.0.1:0"),
            "backends": [
                *({"name": name, **self.addresses_of_triton} for name in ("a", "b")),
                {"name": "s", **self.addresses_of_triton, "standby": 1},
            ],
            "discovery": {"files": [str(found)]},
            "models": {
                "sleeper": {"max_requests_per_backend": 1},
                "name": {
                    "variants": [
                        {"name": "stable", "model": "simple", "weight": 90},
                        {"name": "canary", "model": "simple_v2", "weight": 10},
                    ],
                    "shadow": {"model": "simple_v2"},
                },
            },
            "scheduling": {"load_poll_interval": "1s"},
            "access": {
                "tokens": [
                    {"name": role, "token": f"{role}-secret-0123456789", "roles": [role]}
                    for role in ("read", "operate", "control")
                ],
            },
        }
        self.serving = Serving(folder, self.config)
        stack.callback(self.serving.process.close)
        self.addresses = self.serving.until_serving()
        self.document = self.ask("GET", "/api/v1/openapi.json")[1]
        self.seen: set[tuple[str, str, int]] = set()
        """Operations and the status of their answers."""
        self._until(lambda: self._up() == 3, "all backends up")
        self._until(lambda: self._model_count() > 0, "a list of models")
        self._until(self._loads_are_known, "reports of the load")
        for _ in range(4):
            stack.enter_context(sleeping_request(self.addresses["http"], LONG_MS))
        self._until(lambda: self._queued() == 1, "a request in the queue")

    def addresses_at(self, host: str) -> dict[str, str]:
        """Addresses that lead to the same Triton, and that no other backend has."""
        theirs = self.addresses_of_triton.items()
        return {port: address.replace("127.0.0.1", host) for port, address in theirs}

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, timeout_s=30, what=what)

    def _up(self) -> int:
        return int(self.ask("GET", "/api/v1/status")[1]["up"])

    def _model_count(self) -> int:
        return len(self.ask("GET", f"{BACKENDS}/a/models")[1]["models"])

    def _loads_are_known(self) -> bool:
        listed = self.ask("GET", BACKENDS)[1]["backends"]
        return all(each["load"]["age_s"] is not None for each in listed)

    def _queued(self) -> int:
        models = self.ask("GET", "/api/v1/queue")[1]["models"]
        return sum(sum(model["waiting"].values()) for model in models)

    def ask(
        self,
        method: str,
        path: str,
        token: str = OPERATE,
        body: bytes | None = None,
        kind: str = "application/json",
    ) -> tuple[int, Any]:
        """The status and the JSON of an answer."""
        status, _, text = self._exchange(method, path, token, body, kind)
        return status, json.loads(text) if text else None

    def headers(self, method: str, path: str) -> Mapping[str, str]:
        """The header fields of an answer."""
        return self._exchange(method, concrete(path), OPERATE, None, "")[1]

    def _exchange(
        self, method: str, path: str, token: str, body: bytes | None, kind: str
    ) -> tuple[int, Mapping[str, str], bytes]:
        host, _, port = self.addresses["admin"].rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if body is not None:
            headers["Content-Type"] = kind
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def check(
        self,
        method: str,
        path: str,
        status: int,
        name: str = "",
        query: str = "",
        token: str = OPERATE,
        body: object = None,
        model: str = "simple",
        **more: Any,
    ) -> Any:
        """Ask, and hold the answer against the document.

        Args:
            method: of the request.
            path: as the document has it.
            status: that is expected.
            name: takes the place of `{name}`; empty: one that is there.
            query: behind the path.
            token: shown.
            body: sent as JSON, bytes as they are.
            model: takes the place of `{model}`.
            more: see `ask`.
        """
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        target = concrete(path, name, model) + query
        got, answer = self.ask(method, target, token, data, **more)
        assert got == status, (method, target, answer)
        assert answer_problems(self.document, method, path, got, answer) == []
        self.seen.add((method, path, got))
        return answer

    @property
    def operations(self) -> list[tuple[str, str]]:
        return [
            (method.upper(), path)
            for path, methods in self.document["paths"].items()
            if path not in OF_THE_PAGE
            for method in methods
        ]

    def documented(self) -> set[tuple[str, str, int]]:
        """Operations and the statuses that their answers may have."""
        return {
            (method.upper(), path, int(status))
            for path, methods in self.document["paths"].items()
            if path not in OF_THE_PAGE
            for method, operation in methods.items()
            for status in operation["responses"]
        }


@pytest.fixture
def admin(triton: Ports, tmp_path: Path) -> Iterator[Admin]:
    with ExitStack() as stack:
        yield Admin(tmp_path, triton, stack)


def test_every_documented_answer_is_given_and_is_as_documented(admin: Admin) -> None:
    # Who may not, and what is no JSON
    for method, path in admin.operations:
        admin.check(method, path, 401, token="")
        admin.check(method, path, 401, token="wrong-secret-0123456789")
        admin.check(method, path, 403, token=CONTROL)
        if method != "GET":
            admin.check(method, path, 403, token=READ)
        admin.check(method, path, 415, body=b"name=x", kind="application/x-www-form-urlencoded")

    # Views
    for method, path in admin.operations:
        if method == "GET":
            admin.check(method, path, 200, token=READ)
            admin.check(method, path, 200)
            if "{name}" in path:
                admin.check(method, path, 404, name="nobody")
    shown = admin.check("GET", BACKENDS, 200)["backends"]
    assert [each["name"] for each in shown] == ["a", "b", "s", "c"]
    assert shown[2]["standby"]["phase"] == "standby"
    assert shown[3]["origin"].startswith("file:")

    # Adding and removing
    admin.check("POST", BACKENDS, 409, body={"name": "d", **admin.addresses_of_triton})
    addresses = admin.addresses_at("localhost")
    admin.check("POST", BACKENDS, 201, body={"name": "d", **addresses})
    admin.check("POST", BACKENDS, 409, body={"name": "d", **addresses})
    admin.check("POST", BACKENDS, 400, body={"name": "e", "http": "no port"})
    admin.check("POST", BACKENDS, 400, body=b"{")
    admin.check("POST", BACKENDS, 413, body=b" " * (2**20 + 1))
    admin.check("DELETE", BACKEND, 400, name="d", query="?limit=soon")
    admin.check("DELETE", BACKEND, 200, name="d", query="?limit=1s")
    admin.check("DELETE", BACKEND, 404, name="nobody")
    assert admin.check("DELETE", BACKEND, 200, name="b")["state"] == "removing"  # it runs a request
    for action in ("drain", "enable", "disable"):
        path = f"{BACKEND}/{action}"
        admin.check("POST", path, 409, name="b")
        admin.check("POST", path, 404, name="nobody")
        admin.check("POST", path, 400, query="?limit=soon")
        admin.check("POST", path, 400, query="?unknown=1")
        admin.check("POST", path, 200)
        admin.check("POST", path, 200, body={})
    for action in ("activate", "deactivate"):
        path = f"{BACKEND}/{action}"
        admin.check("POST", path, 409)  # it always serves
        admin.check("POST", path, 404, name="nobody")
        admin.check("POST", path, 400, name="s", query="?unknown=1")
        admin.check("POST", path, 200, name="s")
    admin.check("POST", f"{BACKEND}/drain", 200, query="?limit=1h")
    for action in ("drain", "enable"):
        path = f"{BACKEND}/models/{{model}}/{action}"
        admin.check("POST", path, 200)
        admin.check("POST", path, 404, name="nobody")
        admin.check("POST", path, 409, name="b")
    admin.check("POST", BACKENDS, 201, body={"name": "b"})

    # Variants
    path = "/api/v1/variants/{name}"
    shown = admin.check("GET", "/api/v1/variants", 200)["models"]
    assert [each["ready"] for each in shown[0]["variants"]] == [True, False]
    changed = admin.check(
        "POST", f"{path}/shares", 200, name="name", body={"percents": {"canary": 20}}
    )
    assert [each["percent"] for each in changed["variants"]] == [80, 20]
    assert changed["changed"] == "operator"
    for wrong in ({"percents": {"nightly": 1}}, {"percents": {"canary": 101}}, {}, []):
        admin.check("POST", f"{path}/shares", 400, name="name", body=wrong)
    admin.check("POST", f"{path}/shares", 404, body={"percents": {"canary": 20}})
    promoted = admin.check("POST", f"{path}/promote", 200, name="name", body={"variant": "stable"})
    assert [each["percent"] for each in promoted["variants"]] == [100, 0]
    for wrong in ("nightly", "canary"):  # there is none, and no backend has it ready
        admin.check("POST", f"{path}/promote", 400, name="name", body={"variant": wrong})
    admin.check("POST", f"{path}/promote", 404, body={"variant": "canary"})
    assert not admin.check("POST", f"{path}/reset", 200, name="name")["changed"]
    admin.check("POST", f"{path}/reset", 404)
    admin.check("POST", f"{path}/shares", 200, name="name", body={"percents": {"canary": 30}})

    # The log
    level = "/api/v1/log-level"
    changed = admin.check("POST", level, 200, body={"level": "debug", "for": "1h"})
    assert (changed["level"], changed["configured"]) == ("debug", "info")
    assert 3590 < changed["left_s"] <= 3600
    back = admin.check("POST", level, 200, body={"level": "debug", "for": "0s"})
    assert back == {"level": "info", "configured": "info", "left_s": 0.0}
    bad: list[Any] = [
        {"level": "loud"}, {"level": "debug", "for": "soon"}, {"level": "debug", "for": "25h"},
        {"for": "1h"}, {"level": "debug", "of": "lb"}, [], None,
    ]  # fmt: skip
    for body in bad:
        admin.check("POST", level, 400, body=json.dumps(body).encode())
    loud = admin.check("POST", level, 400, body={"level": "loud"})
    assert loud["error"] == "level: expected debug, info, warning, error, got 'loud'"

    # The configuration in force
    text = json.dumps(config := admin.check("GET", "/api/v1/config", 200))
    assert "secret-0123456789" not in text
    assert [token["token"] for token in config["access"]["tokens"]] == ["***"] * 3
    assert config["retry"]["attempts"] == 3
    assert config["models"]["sleeper"]["max_requests_per_backend"] == 1

    # The process
    admin.serving.write({"listen": 7})
    assert admin.check("POST", "/api/v1/reload", 409)["problems"]
    assert admin.check("POST", "/api/v1/upgrade", 409)["problems"]
    admin.serving.write(admin.config | {"retry": {"attempts": 2}})
    assert admin.check("POST", "/api/v1/reload", 200)["changed"] == ["retry.attempts"]

    # Models on demand
    placed = "/api/v1/placement/models/{model}"
    for action in ("pin", "unpin", "evict"):
        admin.check("POST", f"{placed}/{action}", 409)
    on_demand = {"mode": "on_demand", "max_models": 1000, "min_age": 0}
    admin.serving.write(admin.config | {"retry": {"attempts": 2}, "placement": on_demand})
    admin.check("POST", "/api/v1/reload", 200)
    for action in ("pin", "unpin", "evict"):
        admin.check("POST", f"{placed}/{action}", 404, model="unknown")
    admin.check("POST", f"{placed}/evict", 400, query="?where=a")
    # Simulated Tritons load nothing on request; tests/triton/test_placement.py has those that do.
    admin.seen |= {("POST", f"{placed}/{action}", 200) for action in ("pin", "unpin", "evict")}

    # The next process
    before = admin.serving.pid
    assert admin.check("POST", "/api/v1/upgrade", 200)["pid"] != before
    kept = admin.check("GET", "/api/v1/variants", 200)["models"]
    assert [each["percent"] for each in kept[0]["variants"]] == [70, 30]

    assert admin.seen == {each for each in admin.documented() if each[2] != DEFECT}


def test_bodies_are_accepted_or_refused_as_documented(admin: Admin) -> None:
    addresses = admin.addresses_at("localhost")
    good: list[dict[str, Any]] = [
        {**addresses, "name": "all", "kind": "triton", "weight": 0.5, "max_requests": 3},
        {"name": "grpc", "grpc": admin.addresses_at("127.0.0.2")["grpc"], "http": None},
        {
            "http": admin.addresses_at("127.0.0.3")["http"],
            "kind": "kserve",
            "health": {"interval": "5s"},
        },
    ]
    bad: list[Any] = [
        *({**addresses, "name": "bad", "kind": kind} for kind in ("other", 1, None)),
        *({**addresses, "name": "bad", "weight": weight} for weight in (0, -1, 1e7, "heavy", None)),
        *({**addresses, "name": "bad", "max_requests": most} for most in (-1, 1.5, "many", None)),
        *({**addresses, "name": name} for name in (7, ["a"], {})),
        *({"name": "bad", "http": address} for address in (7, ["a"])),
        {"name": 7},
        [],
        "text",
        None,
    ]
    for body in good:
        assert is_valid_body(admin.document, "POST", BACKENDS, body), body
        answer = admin.check("POST", BACKENDS, 201, body=body)
        assert answer["weight"] == body.get("weight", 1.0)
    for body in bad:
        assert not is_valid_body(admin.document, "POST", BACKENDS, body), body
        admin.check("POST", BACKENDS, 400, body=json.dumps(body).encode())


def test_unknown_paths_and_methods_get_documented_errors(admin: Admin) -> None:
    for path in ("/nothing", "/api/v2/backends", f"{BACKENDS}/a/explode", "/api/v1/backends/"):
        for method in ("GET", "POST", "DELETE"):
            admin.check(method, path, 404)
        admin.check("GET", path, 401, token="")
    operations = admin.operations
    for path in {path for _, path in operations}:
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            if (method, path) not in operations:
                admin.check(method, path, 405)
                allowed = admin.headers(method, path)["Allow"].split(",")
                assert {each for each in allowed if each != "HEAD"} == {
                    method for method, other in operations if other == path
                }


def test_every_view_has_head(admin: Admin) -> None:
    for method, path in admin.operations:
        if method == "GET":
            status, body = admin.ask("HEAD", concrete(path), READ)
            assert (status, body) == (200, None)
