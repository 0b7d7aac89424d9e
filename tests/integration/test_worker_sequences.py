"""Sequences before four workers: each step comes over another connection and the other protocol.

A few of them run in CI; `make sequences` has 1,000.
"""

from __future__ import annotations

import http.client
import http.server
import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from lb.kserve import inference_pb2 as pb
from tests.fakes.process import has_ended, wait_until
from tests.fakes.serving import Serving
from tests.integration.test_upgrade_sequences import Keeping, keeping_servers, step
from tests.integration.test_workers import get, kill, processes

_COUNT: Final = int(os.environ.get("SEQUENCES", "60"))
_STEPS: Final = 6
_CONNECTIONS: Final = 12
_REFUSAL: Final = (
    "inference request for sequence 1 to model 'simple_sequence' must specify the START flag on "
    "the first request of the sequence"
)


class KeepingAsTriton(Keeping):
    """A Triton's words for a step of a sequence that did not begin there."""

    refusal = b'{"error":"%b"}' % _REFUSAL.encode()


@contextmanager
def grpc_side(known: set[int]) -> Iterator[int]:
    """The gRPC port of a server that keeps these sequences."""

    def infer(request: Any, context: grpc.ServicerContext) -> Any:
        sequence = request.parameters["sequence_id"].int64_param
        if request.parameters["sequence_start"].bool_param:
            known.add(sequence)
        if sequence not in known:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, _REFUSAL)
        return pb.ModelInferResponse(model_name=request.model_name, id=request.id)

    handler = grpc.unary_unary_rpc_method_handler(
        infer, pb.ModelInferRequest.FromString, pb.ModelInferResponse.SerializeToString
    )
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler(
                "inference.GRPCInferenceService", {"ModelInfer": handler}
            )
        ]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def step_message(sequence: int) -> Any:
    """A step of a sequence that goes on."""
    request = pb.ModelInferRequest(model_name="simple_sequence")
    request.parameters["sequence_id"].int64_param = sequence
    return request


def grpc_step(channel: grpc.Channel, sequence: int) -> None:
    """Send a step of a sequence that goes on.

    Raises:
        grpc.RpcError: it was not answered.
    """
    call = channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelInferResponse.FromString,
    )
    call(step_message(sequence), timeout=60)


SendStep = Callable[[int], Future[str]]
"""Sends a step of a sequence that goes on, and gives its error; empty: it was answered."""


@contextmanager
def over_http(address: str) -> Iterator[SendStep]:
    """A connection over HTTP/1.1."""
    connection = http.client.HTTPConnection(address, timeout=60)
    with ThreadPoolExecutor(1) as pool:

        def send(sequence: int) -> str:
            status = step(connection, sequence, start=False)
            return "" if status == 200 else str(status)

        yield lambda sequence: pool.submit(send, sequence)
    connection.close()


@contextmanager
def over_grpc(address: str) -> Iterator[SendStep]:
    """A connection over gRPC."""
    with own_channel(address) as channel, ThreadPoolExecutor(1) as pool:

        def send(sequence: int) -> str:
            try:
                grpc_step(channel, sequence)
            except grpc.RpcError as error:
                return str(error)
            return ""

        yield lambda sequence: pool.submit(send, sequence)


_STEPS_OVER: Final = {"http": over_http, "grpc": over_grpc}


@contextmanager
def before_three_servers(
    tmp_path: Path, config: dict[str, Any]
) -> Iterator[tuple[Serving, list[http.server.ThreadingHTTPServer]]]:
    """A balancer before three servers that keep sequences, whichever protocol steps come by."""
    with ExitStack() as stack:
        servers = stack.enter_context(keeping_servers(config, 3, KeepingAsTriton))
        for server, backend in zip(servers, config["backends"], strict=True):
            port = stack.enter_context(grpc_side(server.known))  # type: ignore[attr-defined]
            backend["grpc"] = f"127.0.0.1:{port}"
        serving = Serving(tmp_path, config)
        stack.callback(serving.process.close)
        yield serving, servers


def own_channel(address: str) -> grpc.Channel:
    """A connection that is shared with nobody."""
    return grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


@pytest.mark.parametrize("affinity", ["least_loaded", "rendezvous"])
def test_steps_over_any_connection_and_protocol_are_right_before_four_workers(
    tmp_path: Path, affinity: str
) -> None:
    config: dict[str, Any] = {
        "workers": 4,
        "listen": dict.fromkeys(("http", "grpc", "metrics", "admin"), "127.0.0.1:0"),
        "sequences": {"affinity": affinity},
    }
    with ExitStack() as stack:
        serving, servers = stack.enter_context(before_three_servers(tmp_path, config))
        addresses = serving.until_serving()
        http_connections = [
            http.client.HTTPConnection(addresses["http"], timeout=60) for _ in range(_CONNECTIONS)
        ]
        channels = [
            stack.enter_context(own_channel(addresses["grpc"])) for _ in range(_CONNECTIONS)
        ]
        for connection in http_connections:
            stack.callback(connection.close)
        for number in range(1, _COUNT + 1):
            for at in range(_STEPS):
                place = (number * 5 + at * 7) % _CONNECTIONS
                if at % 2:
                    grpc_step(channels[place], number)
                else:
                    assert step(http_connections[place], number, start=not at) == 200, (number, at)
        kept = [len(server.known) for server in servers]  # type: ignore[attr-defined]
        assert sum(kept) == _COUNT  # each at one server
        # The hash of their numbers is 1.10 times the mean at most with 1,000.
        assert max(kept) <= 1.2 * _COUNT / len(kept) + 3, kept


def end(connection: http.client.HTTPConnection, sequence: int) -> int:
    """Send the last step of a sequence, and return the status."""
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [1]}
    body = {"parameters": {"sequence_id": sequence, "sequence_end": True}, "inputs": [tensor]}
    connection.request("POST", "/v2/models/simple_sequence/infer", json.dumps(body))
    answer = connection.getresponse()
    answer.read()
    return answer.status


def count_open(addresses: dict[str, str]) -> int:
    """How many sequences are open, once all workers have told of theirs."""
    assert get(addresses["metrics"], "/metrics/own")[0] == 200
    backends = json.loads(get(addresses["admin"], "/api/v1/backends")[1])["backends"]
    return sum(each["open_sequences"] for each in backends)


def test_open_sequences_go_on_when_the_control_process_was_started_again(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "workers": 2,
        "listen": dict.fromkeys(("http", "metrics", "admin"), "127.0.0.1:0"),
    }
    with ExitStack() as stack:
        servers = stack.enter_context(keeping_servers(config, 3, KeepingAsTriton))
        serving = Serving(tmp_path, config)
        stack.callback(serving.process.close)
        addresses = serving.until_serving()

        def open_sequences() -> int:
            return count_open(addresses)

        connections = [
            http.client.HTTPConnection(addresses["http"], timeout=60) for _ in range(_CONNECTIONS)
        ]
        for connection in connections:
            stack.callback(connection.close)
        numbers = range(1, 10)
        assert {step(connections[0], number, start=True) for number in numbers} == {200}
        wait_until(lambda: open_sequences() == len(numbers), what="all are known")
        kill(serving, "control")
        assert open_sequences() == len(numbers)
        found = [step(each, number, start=False) for number in numbers for each in connections[1:]]
        assert set(found) == {200}
        assert sorted(n for server in servers for n in server.known) == [*numbers]  # type: ignore[attr-defined]

        os.kill(processes(serving)["control"], signal.SIGKILL)
        serving.until_logged("control process is away", 4)  # both workers, twice
        assert {end(connections[0], number) for number in numbers[1:]} == {200}
        serving.until_logged("process serves again role=control", 2)
        assert open_sequences() == 1


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_step_waits_for_the_news_of_its_sequence(
    tmp_path: Path, kind: str, number: signal.Signals
) -> None:
    """The control process stands still between the START and the step, as on a machine without
    free cores, or dies."""
    config: dict[str, Any] = {
        "workers": 2,
        "listen": dict.fromkeys(("http", "grpc", "metrics", "admin"), "127.0.0.1:0"),
    }
    with ExitStack() as stack:
        serving, _ = stack.enter_context(before_three_servers(tmp_path, config))
        addresses = serving.until_serving()
        first = http.client.HTTPConnection(addresses["http"], timeout=60)
        stack.callback(first.close)
        # Four, since the next one goes to the worker with fewer: both have some.
        steps = [stack.enter_context(_STEPS_OVER[kind](addresses[kind])) for _ in range(4)]
        for sequence, each in enumerate(steps, 100):
            assert step(first, sequence, start=True) == 200
            assert each(sequence).result(60) == ""  # it is connected
        control = processes(serving)["control"]
        os.kill(control, number)
        try:
            assert step(first, 1, start=True) == 200
            answers = [each(1) for each in steps]
            wait(answers, timeout=60, return_when=FIRST_COMPLETED)
        finally:
            if number is signal.SIGSTOP:
                os.kill(control, signal.SIGCONT)
        assert [each.result(60) for each in answers] == [""] * len(steps)


class HeldStep:
    """The last step of a sequence over a connection of its own, which does not yet say of which
    one: its worker stays until it is answered."""

    def __init__(self, address: str, sequence: int) -> None:
        tensor = {"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [1]}
        said = {"sequence_id": sequence, "sequence_end": True}
        body = json.dumps({"inputs": [tensor], "parameters": said}).encode()
        at = body.index(b'"parameters"')
        self._last = body[at:]
        self._connection = http.client.HTTPConnection(address, timeout=60)
        self._connection.putrequest("POST", "/v2/models/simple_sequence/infer")
        self._connection.putheader("Content-Length", str(len(body)))
        self._connection.endheaders(body[:at])

    def send(self) -> int:
        """Send the rest, and return the status of the answer."""
        self._connection.send(self._last)
        try:
            return self._connection.getresponse().status
        finally:
            self._connection.close()


@pytest.mark.parametrize("dies", [False, True])
def test_sequences_outlive_upgrades(tmp_path: Path, dies: bool) -> None:
    """Whichever service has begun them, and whichever has the connection, though the control
    process of the one before dies."""
    config: dict[str, Any] = {
        "workers": 2,
        "listen": dict.fromkeys(("http", "grpc", "metrics", "admin"), "127.0.0.1:0"),
        "shutdown": {"drain": "60s"},
    }
    with ExitStack() as stack:
        stack.enter_context(keeping_servers(config, 3, KeepingAsTriton))
        serving = Serving(tmp_path, config)
        stack.callback(serving.process.close)
        addresses = serving.until_serving()
        address = addresses["http"]

        def open_sequences() -> int:
            return count_open(addresses)

        def connect() -> http.client.HTTPConnection:
            connection = http.client.HTTPConnection(address, timeout=60)
            stack.callback(connection.close)
            return connection

        before = connect()
        for number in range(1, _COUNT + 1):
            assert step(before, number, start=True) == 200
        before.close()
        held = HeldStep(address, _COUNT + 1)
        first, control = serving.pid, processes(serving)["control"]
        serving.signal(signal.SIGUSR2)
        wait_until(lambda: serving.pid != first, timeout_s=90, what="the next service")
        after = connect()
        for number in range(1, _COUNT + 1):
            assert step(after, number, start=False) == 200, number
        if dies:
            os.kill(control, signal.SIGKILL)
            serving.until_logged("process serves again role=control")
        assert step(after, _COUNT + 1, start=True) == 200
        wait_until(lambda: open_sequences() == _COUNT + 1, timeout_s=60, what="all are known")
        assert held.send() == 200  # the last step, over a worker of the service before
        wait_until(lambda: open_sequences() == _COUNT, timeout_s=60, what="its end is known")
        wait_until(lambda: has_ended(first), timeout_s=90, what="the end of the service before")
