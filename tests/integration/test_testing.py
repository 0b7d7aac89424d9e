"""`lb.testing` and `triton-lb simulate`: what users test their own clients with."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import psutil
import pytest

from lb.kserve import inference_pb2 as pb
from lb.testing import Balancer, StartError, running, simulated
from tests.fakes.process import ENVIRONMENT, REPOSITORY, free_from, wait_until

pytest_plugins = ["pytester"]

_PORTS_OF_TWO = (0, 1, 2, 100, 101, 102)
"""Of two Tritons, from their first one on. What is killed and started again needs ports that are
not given to connections meanwhile."""


def infer(balancer: Balancer) -> list[int]:
    """Ask the model `simple` for a sum, over gRPC."""
    request = pb.ModelInferRequest(model_name="simple")
    for name in ("INPUT0", "INPUT1"):
        tensor = request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
        tensor.contents.int_contents.extend(range(16))
    with grpc.insecure_channel(balancer.grpc) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelInferResponse.FromString,
        )
        answer: pb.ModelInferResponse = call(request, timeout=30)
    raw = answer.raw_output_contents[0]
    return [int.from_bytes(raw[at : at + 4], "little") for at in range(0, len(raw), 4)]


def test_requests_go_on_when_a_triton_is_killed_and_it_comes_back() -> None:
    with (
        simulated(2, speeds=[1, 2], first_port=free_from(_PORTS_OF_TWO)) as tritons,
        running(tritons) as balancer,
    ):
        assert infer(balancer) == [2 * each for each in range(16)]
        tritons[0].kill()
        for _ in range(20):
            assert infer(balancer) == [2 * each for each in range(16)]
        assert balancer.backends()["triton-0"] != "up"
        tritons[0].restart()
        balancer.wait_ready()
    assert not any(each.is_running for each in tritons)


def test_the_example_of_the_guide_runs() -> None:
    guide = (REPOSITORY / "docs" / "testing.md").read_text()
    example = guide.partition("```python\n")[2].partition("```")[0]
    subprocess.run((sys.executable, "-c", example), env=ENVIRONMENT, check=True, timeout=60)


def test_a_frozen_triton_is_closed_like_any_other() -> None:
    with simulated(1) as (triton,):
        triton.freeze()
    assert not triton.is_running


def test_a_triton_ends_with_a_process_that_is_killed() -> None:
    owner = "from lb.testing import simulated\nwith simulated() as (t,): print(t.pid); input()"
    command = (sys.executable, "-c", owner)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        triton = psutil.Process(int(process.stdout.readline()))
        process.kill()
        assert psutil.wait_procs([triton], timeout=30)[1] == []


def test_tritons_start_in_a_process_that_uses_grpc() -> None:
    """A fork would run gRPC's handlers in the child, which may hang there."""
    with simulated(2, first_port=free_from(_PORTS_OF_TWO)) as tritons, running(tritons) as balancer:
        infer(balancer)
        with grpc.insecure_channel(balancer.grpc) as channel:
            grpc.channel_ready_future(channel).result(timeout=30)
            for triton in tritons:
                triton.kill()
                triton.restart()
            assert all(triton.is_running for triton in tritons)


def test_a_wrong_setting_is_told() -> None:
    with (
        simulated(1) as tritons,
        pytest.raises(StartError, match="polcy"),
        running(tritons, {"polcy": "round_robin"}),
    ):
        pass


def test_a_port_that_is_taken_is_told() -> None:
    with simulated(1) as (triton,):
        port = int(triton.http.rpartition(":")[2])
        with pytest.raises(StartError, match="cannot listen"), simulated(1, first_port=port):
            pass


def test_the_fixtures_of_pytest(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["lb.testing.plugin"]')
    pytester.makepyfile(
        """
        def test_three_tritons_behind_one_address(tritons, triton_lb):
            assert len(tritons) == 3
            assert triton_lb.backends() == {each.name: "up" for each in tritons}
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


@contextmanager
def simulate(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = (sys.executable, "-m", "lb", "simulate", *arguments)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env=ENVIRONMENT, text=True, cwd=Path("/")
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def test_simulate_says_where_they_are_and_ends_with_a_signal() -> None:
    with simulate("--count", "2", "--first-port", "0") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        assert lines[0].startswith("triton-0  http 127.0.0.1:")
        addresses = [line.split()[2] for line in lines[:2]]
        assert lines[3].split() == [
            *("triton-lb", "serve", "--backend", addresses[0], "--backend", addresses[1])
        ]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_simulate_names_the_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = (sys.executable, "-m", "lb", "simulate", "--first-port", str(port))
        done = subprocess.run(
            command, env=ENVIRONMENT, text=True, capture_output=True, timeout=30, check=False
        )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"triton-lb simulate: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "choose others by --first-port\n"
    )


def test_simulate_goes_on_with_those_that_are_left() -> None:
    with simulate("--count", "2", "--first-port", "0") as process:
        assert process.stdout is not None
        pids = [int(process.stdout.readline().split()[-1]) for _ in range(2)]
        for number, pid in enumerate(pids):
            subprocess.run(["kill", "-9", str(pid)], check=True)
            wait_until(
                lambda number=number: f"triton-{number} has ended" in process.stdout.readline(),  # type: ignore[misc,union-attr]
                timeout_s=30,
                what="it is told",
            )
        assert process.wait(30) == 0
