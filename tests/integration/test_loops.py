"""Balancers that name each other: requests end, nobody is ready because of itself, and chains of
balancers on purpose go on working. Every balancer and every simulated Triton is a process."""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from lb.kserve import inference_pb2 as pb
from lb.kserve import messages
from tests.fakes.process import ENVIRONMENT, ChildProcess, free_ports, wait_until
from tests.fakes.serving import Serving

TIMEOUT_S = 5.0
"""Of the clients in the report of this fault: their requests went in circles until then."""
SETTLED_S = 20.0
FEW_DESCRIPTORS = 120
"""What a balancer has open in these tests is below this many times over; circles opened tens of
thousands."""
INFER = json.dumps(
    {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1.5]}]}
).encode()
INFER_PATH = "/v2/models/identity_fp32/infer"


class Triton:
    """A simulated Triton that can be killed and started again at the same ports."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._folder = folder
        self._http, self._grpc, self._metrics = free_ports(3)
        self._starts = 0
        self._process: ChildProcess | None = None

    @property
    def entry(self) -> dict[str, str]:
        """As a backend of a balancer."""
        return backend(self.name, self._http, self._grpc)

    def start(self) -> None:
        self._starts += 1
        log = self._folder / f"{self.name}.{self._starts}.log"
        ports = ("--http-port", self._http, "--grpc-port", self._grpc)
        command = (*ports, "--metrics-port", self._metrics, "--models", "identity_fp32", "simple")
        self._process = ChildProcess(
            (sys.executable, "-m", "lb.simulator", *map(str, command)), log=log, env=ENVIRONMENT
        )
        wait_until(lambda: log.read_text().endswith("\n"), timeout_s=30, what="the simulator")

    def close(self) -> None:
        if self._process is not None:
            self._process.close()


class Balancer:
    """`triton-lb serve` at ports that are known before it starts."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._folder = folder
        self.http, self.grpc, self.metrics, self.admin = free_ports(4)
        self._serving: Serving | None = None

    @property
    def entry(self) -> dict[str, str]:
        """As a backend of another balancer."""
        return backend(self.name, self.http, self.grpc)

    @property
    def process(self) -> ChildProcess:
        return self.serving.process

    @property
    def serving(self) -> Serving:
        assert self._serving is not None
        return self._serving

    @property
    def log(self) -> str:
        return self.serving.log

    def start(self, *backends: dict[str, str], **settings: Any) -> None:
        ports = {
            "http": self.http, "grpc": self.grpc, "metrics": self.metrics, "admin": self.admin,
        }  # fmt: skip
        config = {
            "listen": {name: f"127.0.0.1:{port}" for name, port in ports.items()},
            "backends": list(backends),
            # Fewer probes in a row decide sooner; what is tested does not depend on it.
            "health": {"interval": "200ms"},
            **settings,
        }
        self._serving = Serving(self._folder, config, name=self.name)

    def until_serving(self) -> None:
        self.serving.until_serving()

    def close(self) -> None:
        if self._serving is not None:
            self._serving.process.close()

    # Asking it

    def ask(
        self, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """One HTTP request on a fresh connection: status, fields and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=TIMEOUT_S)
        try:
            fields = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request("GET" if body is None else "POST", path, body, fields)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def call(
        self, method: messages.Method[Any, Any], request: Any, **metadata: str
    ) -> tuple[grpc.StatusCode, str, Any]:
        """One gRPC call on a fresh channel: status, detail and answer."""
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc}") as channel:
            unary = channel.unary_unary(
                method.path,
                request_serializer=method.encode,
                response_deserializer=method.decode,
            )
            fields = [(name.replace("_", "-"), value) for name, value in metadata.items()]
            try:
                answer = unary(request, timeout=TIMEOUT_S, metadata=fields)
            except grpc.RpcError as error:
                return error.code(), error.details(), None
            return grpc.StatusCode.OK, "", answer

    def is_ready(self) -> tuple[bool, bool]:
        """What it says over HTTP and over gRPC."""
        code, _, answer = self.call(messages.SERVER_READY, pb.ServerReadyRequest())
        is_ready = code is grpc.StatusCode.OK and answer.ready
        return self.ask("/v2/health/ready")[0] == 200, is_ready

    def until_ready(self, wanted: bool) -> None:
        def is_so() -> bool:
            return self.is_ready() == (wanted, wanted)

        what = f"{self.name} is {'' if wanted else 'not '}ready"
        wait_until(is_so, timeout_s=SETTLED_S, what=what)

    # What it tells of itself

    def requests(self) -> int:
        """How many requests it has finished."""
        return self._count("triton_lb_requests_total{")

    def loops(self, protocol: str) -> int:
        """How many of them went in a circle."""
        return self._count(f'triton_lb_request_errors_total{{protocol="{protocol}",reason="loop"}}')

    def _count(self, start: str) -> int:
        lines = _page(self.metrics, "/metrics/own").splitlines()
        return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if line.startswith(start))

    def backends(self) -> list[dict[str, Any]]:
        """What it says of its backends."""
        found: list[dict[str, Any]] = json.loads(_page(self.admin, "/api/v1/backends"))["backends"]
        return found

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def _page(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def backend(name: str, http_port: int, grpc_port: int) -> dict[str, str]:
    return {
        "name": name,
        "http": f"127.0.0.1:{http_port}",
        "grpc": f"127.0.0.1:{grpc_port}",
    }


def infer_request(**parameters: Any) -> pb.ModelInferRequest:
    tensor = pb.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="FP32", shape=[1])
    tensor.contents.fp32_contents.append(1.5)
    request = pb.ModelInferRequest(model_name="identity_fp32", inputs=[tensor])
    for name, value in parameters.items():
        kind = "bool_param" if isinstance(value, bool) else "int64_param"
        setattr(request.parameters[name], kind, value)
    return request


class Scene:
    """Processes of one test; all end with it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack

    def triton(self, name: str) -> Triton:
        triton = Triton(self._folder, name)
        self._stack.callback(triton.close)
        triton.start()
        return triton

    def balancer(self, name: str) -> Balancer:
        balancer = Balancer(self._folder, name)
        self._stack.callback(balancer.close)
        return balancer


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(tmp_path, stack)


Pair = tuple[Balancer, Balancer, Triton]
"""One has a Triton and the other balancer, which has only the first."""


def start_pair(scene: Scene) -> Pair:
    """Start such a pair and its Triton, until both are ready."""
    triton, first, second = scene.triton("t"), scene.balancer("a"), scene.balancer("c")
    first.start(triton.entry, second.entry)
    second.start(first.entry)
    for each in (first, second):
        each.until_serving()
    for each in (first, second):
        each.until_ready(True)
    return first, second, triton


@pytest.fixture
def pair(scene: Scene) -> Pair:
    """A pair of this test alone, which may stop the Triton."""
    return start_pair(scene)


@pytest.fixture(scope="module")
def shared_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A pair for tests that change nothing."""
    with ExitStack() as stack:
        yield start_pair(Scene(tmp_path_factory.mktemp("pair"), stack))


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def test_questions_of_our_own_do_not_go_in_circles(shared_pair: Pair) -> None:
    first, second, _ = shared_pair
    asked = 5
    before = [each.requests() for each in (first, second)]
    for _ in range(asked):
        for each in (first, second):
            status, _, body = each.ask("/v2/repository/index", b"{}")
            assert status == 200
            assert {entry["name"] for entry in json.loads(body)} == {"identity_fp32", "simple"}
            code, _, answer = each.call(messages.REPOSITORY_INDEX, pb.RepositoryIndexRequest())
            assert code is grpc.StatusCode.OK
            assert {model.name for model in answer.models} == {"identity_fp32", "simple"}
    # Ours: ten to each, and those to the second are put to the first. The rest are probes that are
    # refused, and looks at models. A question that went in a circle was hundreds of requests.
    limit = 4 * asked + 40
    for each, then in zip((first, second), before, strict=True):
        assert each.requests() - then <= limit


def test_without_a_server_both_answer_at_once_and_neither_is_ready(pair: Pair) -> None:
    first, second, triton = pair
    triton.close()
    infer = infer_request()
    answers = at_once(
        lambda: first.ask(INFER_PATH, INFER),
        lambda: second.ask(INFER_PATH, INFER),
        lambda: first.ask("/v2/models/simple/config"),
        lambda: first.call(messages.MODEL_INFER, infer),
        lambda: second.call(messages.MODEL_INFER, infer),
        lambda: second.call(messages.MODEL_CONFIG, pb.ModelConfigRequest(name="simple")),
    )
    assert {answer[0] for answer in answers[:3]} <= {503, 508}
    assert {answer[0] for answer in answers[3:]} == {grpc.StatusCode.UNAVAILABLE}
    for each in (first, second):
        each.until_ready(False)
        assert each.descriptors < FEW_DESCRIPTORS
    # Nobody is taken in by what the other said before.
    assert first.is_ready() == second.is_ready() == (False, False)
    triton.start()
    for each in (first, second):
        each.until_ready(True)
        assert each.ask(INFER_PATH, INFER)[0] == 200
        assert each.call(messages.MODEL_INFER, infer)[0] is grpc.StatusCode.OK


def test_the_one_that_rests_on_us_is_down_and_says_why(shared_pair: Pair) -> None:
    first, second, _ = shared_pair

    def reasons() -> str:
        state = next(each for each in first.backends() if each["name"] == second.name)
        # It has no ready model at first, and is down once it has missed some probes.
        return str(state["why"]) if state["state"] == "down" else ""

    for why in ("HTTP status 508: loop detected", "loop detected: ready only through triton-lb-"):
        wait_until(lambda why=why: why in reasons(), timeout_s=SETTLED_S, what=why)
    for protocol in ("http", "grpc"):
        assert second.loops(protocol) > 0
    wait_until(lambda: '"reason":"loop"' in second.log, timeout_s=SETTLED_S, what="a line of log")


def test_balancers_that_each_have_a_server_share_them(scene: Scene) -> None:
    tritons = [scene.triton("t1"), scene.triton("t2")]
    first, second = scene.balancer("a"), scene.balancer("c")
    first.start(tritons[0].entry, second.entry)
    second.start(tritons[1].entry, first.entry)
    for each in (first, second):
        each.until_serving()
        each.until_ready(True)
    for _ in range(40):
        for each in (first, second):
            assert each.ask(INFER_PATH, INFER)[0] == 200
            assert each.call(messages.MODEL_INFER, infer_request())[0] is grpc.StatusCode.OK
    # One server is enough for both, whichever it is.
    tritons[0].close()

    def goes_well() -> bool:
        return first.ask(INFER_PATH, INFER)[0] == 200

    wait_until(goes_well, timeout_s=SETTLED_S, what="requests go to the other server")
    for each in (first, second):
        each.until_ready(True)
        for _ in range(20):
            assert each.ask(INFER_PATH, INFER)[0] == 200
            assert each.call(messages.MODEL_INFER, infer_request())[0] is grpc.StatusCode.OK
    tritons[1].close()
    for each in (first, second):
        each.until_ready(False)
        assert each.descriptors < FEW_DESCRIPTORS
        assert each.ask(INFER_PATH, INFER)[0] in (503, 508)


def test_a_circle_of_three_is_not_ready_without_a_server(scene: Scene) -> None:
    triton = scene.triton("t")
    ring = [scene.balancer(name) for name in "abc"]
    ring[0].start(triton.entry, ring[1].entry)
    ring[1].start(ring[2].entry)
    ring[2].start(ring[0].entry)
    for each in ring:
        each.until_serving()
    for each in ring:
        each.until_ready(True)
        assert each.ask(INFER_PATH, INFER)[0] == 200
    triton.close()
    for each in ring:
        each.until_ready(False)
        assert each.descriptors < FEW_DESCRIPTORS


def test_a_chain_on_purpose_passes_everything(scene: Scene) -> None:
    triton = scene.triton("t")
    inner, middle, edge = (scene.balancer(name) for name in ("inner", "middle", "edge"))
    inner.start(triton.entry)
    middle.start(inner.entry)
    edge.start(middle.entry)
    for each in (inner, middle, edge):
        each.until_serving()
    edge.until_ready(True)
    status, fields, body = edge.ask(INFER_PATH, INFER)
    assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [1.5])
    assert not any(name.lower().startswith("triton-lb") for name in fields)
    assert edge.ask("/v2/models/simple/ready")[0] == 200
    index = json.loads(edge.ask("/v2/repository/index", b"{}")[2])
    assert {entry["name"] for entry in index} == {"identity_fp32", "simple"}
    assert edge.ask("/v2/models/identity_fp32/stats")[0] == 200
    with grpc.insecure_channel(f"127.0.0.1:{edge.grpc}") as channel:
        method = messages.MODEL_STREAM_INFER
        stream = channel.stream_stream(
            method.path, request_serializer=method.encode, response_deserializer=method.decode
        )
        steps = [
            infer_request(sequence_id=7, sequence_start=n == 0, sequence_end=n == 4)
            for n in range(5)
        ]
        answers = list(stream(iter(steps), timeout=TIMEOUT_S))
        assert [answer.error_message for answer in answers] == [""] * 5
    for step in steps:
        assert edge.call(messages.MODEL_INFER, step)[0] is grpc.StatusCode.OK
    for each in (edge, middle, inner):
        assert each.loops("http") == each.loops("grpc") == 0


def stream(balancer: Balancer, *requests: pb.ModelInferRequest) -> list[str]:
    """The errors of the answers on a `ModelStreamInfer`; empty for a good one."""
    with grpc.insecure_channel(f"127.0.0.1:{balancer.grpc}") as channel:
        method = messages.MODEL_STREAM_INFER
        call = channel.stream_stream(
            method.path, request_serializer=method.encode, response_deserializer=method.decode
        )
        return [answer.error_message for answer in call(iter(requests), timeout=TIMEOUT_S)]


@pytest.fixture
def fork(scene: Scene) -> tuple[Balancer, Balancer, Triton]:
    """A balancer before two chains, one of them with two balancers: the outermost balancer, the
    innermost one of the longer chain, and the server there. Only requests tell anybody that a
    server is gone."""
    tritons = [scene.triton("t1"), scene.triton("t2")]
    inner, middle, other, edge = (
        scene.balancer(name) for name in ("inner", "middle", "other", "edge")
    )
    seldom = {"interval": "60s"}
    chain = (
        (inner, tritons[0].entry), (middle, inner.entry), (other, tritons[1].entry),
        (edge, middle.entry, other.entry),
    )  # fmt: skip
    for balancer, *backends in chain:  # a probe that is too early is not made again
        balancer.start(*backends, health=seldom)
        balancer.until_serving()
        balancer.until_ready(True)
    return edge, inner, tritons[0]


def test_what_a_balancer_could_not_serve_goes_to_another_one(
    fork: tuple[Balancer, Balancer, Triton],
) -> None:
    edge, inner, triton = fork
    triton.close()
    with ThreadPoolExecutor(20) as pool:  # so many at once that some go there
        answers = [pool.submit(edge.ask, INFER_PATH, INFER) for _ in range(20)]
    assert [answer.result()[0] for answer in answers] == [200] * 20
    assert inner.requests() > 0
    for _ in range(10):
        status, fields, body = edge.ask(INFER_PATH, INFER)
        assert status == 200, body
        assert not any(name.lower().startswith("triton-lb") for name in fields)
        code, detail, _ = edge.call(messages.MODEL_INFER, infer_request())
        assert code is grpc.StatusCode.OK, detail
        assert stream(edge, infer_request()) == [""]
        assert edge.ask("/v2/models/simple/config")[0] == 200


def test_only_balancers_are_told_that_a_request_did_not_run(scene: Scene) -> None:
    triton, only = scene.triton("t"), scene.balancer("only")
    only.start(triton.entry)
    only.until_serving()
    only.until_ready(True)
    triton.close()
    only.until_ready(False)
    another = "triton-lb-" + "0" * 16
    for told, name in (({}, ""), ({"CDN_Loop": another}, "no_backend")):
        status, fields, _ = only.ask(INFER_PATH, INFER, **told)
        assert status == 503
        assert fields.get("triton-lb-not-run", "") == name
        ready = only.ask("/v2/health/ready", **told)
        assert ready[0] == 400
        assert ("triton-lb-ready-through" in ready[1]) is bool(told)
    with grpc.insecure_channel(f"127.0.0.1:{only.grpc}") as channel:
        method = messages.MODEL_INFER
        unary = channel.unary_unary(
            method.path, request_serializer=method.encode, response_deserializer=method.decode
        )
        for metadata, why in (((), None), ((("cdn-loop", another),), "no_backend")):
            with pytest.raises(grpc.RpcError) as raised:
                unary(infer_request(), timeout=TIMEOUT_S, metadata=metadata)
            error: Any = raised.value
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            found = {**dict(error.initial_metadata()), **dict(error.trailing_metadata())}
            assert found.get("triton-lb-not-run") == why


def test_a_balancer_without_a_server_is_not_ready_whatever_it_once_had(scene: Scene) -> None:
    triton, inner, edge = scene.triton("t"), scene.balancer("inner"), scene.balancer("edge")
    inner.start(triton.entry)
    inner.until_serving()
    # What the inner one listed while it had a server is held for much longer than this test takes.
    edge.start(inner.entry, model_table={"refresh": "10m"})
    edge.until_serving()
    edge.until_ready(True)
    assert edge.ask(INFER_PATH, INFER)[0] == 200
    triton.close()
    edge.until_ready(False)
    assert [each["state"] for each in edge.backends()] == ["unready"]
    triton.start()
    edge.until_ready(True)
    assert edge.ask(INFER_PATH, INFER)[0] == 200


class Forwarder:
    """Passes connections on to a port: what a service address does."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._to = port
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                source, _ = self._listener.accept()
            except OSError:
                return
            try:
                sink = socket.create_connection(("127.0.0.1", self._to), timeout=TIMEOUT_S)
            except OSError:
                source.close()
                continue
            for one, other in ((source, sink), (sink, source)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, sink: socket.socket) -> None:
        with source:
            try:
                while data := source.recv(65536):
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_WR)
            except OSError:
                sink.close()


@pytest.mark.parametrize("probe", ["auto", "tcp"])
def test_a_balancer_that_names_itself_answers_at_once(scene: Scene, probe: str) -> None:
    own = scene.balancer("own")
    forwarders = [Forwarder(own.http), Forwarder(own.grpc)]
    try:
        entry = backend("self", *(forwarder.port for forwarder in forwarders))
        own.start(entry, health={"interval": "200ms", "probe": probe})
        own.until_serving()
        if probe == "auto":
            own.until_ready(False)
            wait_until(
                lambda: own.loops("http") > 1 and own.loops("grpc") > 1,
                timeout_s=SETTLED_S,
                what="probes came back",
            )
        else:
            own.until_ready(True)  # such probes ask nothing
            status, _, body = own.ask(INFER_PATH, INFER)
            assert status == 508
            assert "has passed this load balancer before" in json.loads(body)["error"]
            code, detail, _ = own.call(messages.MODEL_INFER, infer_request())
            assert code is grpc.StatusCode.UNAVAILABLE
            assert "has passed this load balancer before" in detail
            assert own.loops("http") > 0
            assert own.loops("grpc") > 0
        wait_until(lambda: '"reason":"loop"' in own.log, timeout_s=SETTLED_S, what="a line of log")
        assert own.descriptors < FEW_DESCRIPTORS
    finally:
        for forwarder in forwarders:
            forwarder.close()


def test_a_forged_marker_ends_the_request_that_has_it_and_no_other(scene: Scene) -> None:
    triton, balancer = scene.triton("t"), scene.balancer("a")
    balancer.start(triton.entry)
    balancer.until_serving()
    balancer.until_ready(True)
    many = ", ".join(f"triton-lb-{number:016x}" for number in range(8))
    connection = http.client.HTTPConnection("127.0.0.1", balancer.http, timeout=TIMEOUT_S)
    try:
        for marker, wanted in (
            (many, 508),
            ("", 200),
            (many[: many.rindex(",")], 200),
            ("some.cdn, triton-lb-nonsense; a=b", 200),
            ("x" * 4000, 200),
        ):
            connection.request("POST", INFER_PATH, INFER, {"CDN-Loop": marker})
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == wanted, marker
            if wanted == 508:
                assert len(body) < 512
                assert "has passed 8 load balancers" in json.loads(body)["error"]
    finally:
        connection.close()
    infer = infer_request()
    code, detail, _ = balancer.call(messages.MODEL_INFER, infer, cdn_loop=many)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "has passed 8 load balancers" in detail
    fewer = many[: many.rindex(",")]
    assert balancer.call(messages.MODEL_INFER, infer, cdn_loop=fewer)[0] is grpc.StatusCode.OK
    assert balancer.ask("/v2/health/ready", cdn_loop=fewer)[0] == 200
    assert balancer.is_ready() == (True, True)
