"""A service with workers, as users run it: `workers: 2`."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lb.simulator.process import Ports
from tests.fakes.probe_counter import ProbeCounter, holding_successors
from tests.fakes.process import free_ports, has_ended, wait_until
from tests.fakes.serving import Serving, before_one
from tests.fakes.steady_load import SteadyLoad
from tests.integration.test_upgrade_sequences import Keeping, keeping_servers, step

_DIGEST = hashlib.sha256(b"0123456789abcdef0123456789abcdef").hexdigest()
GONE = (OSError, http.client.HTTPException)
_DONE = 'triton_lb_request_duration_seconds_count{kind="inference",protocol="http"}'


def configuration(triton: Ports) -> dict[str, Any]:
    """All listeners on free ports, one backend, two workers."""
    return {"workers": 2, **before_one(triton)}


@pytest.fixture
def config(triton: Ports) -> dict[str, Any]:
    return configuration(triton)


@pytest.fixture
def serving(tmp_path: Path, config: dict[str, Any]) -> Iterator[Serving]:
    running = Serving(tmp_path, config)
    yield running
    running.process.close()


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory, triton: Ports) -> Iterator[Serving]:
    """A service that several tests use: all of its processes live on."""
    running = Serving(tmp_path_factory.mktemp("lasting"), configuration(triton))
    yield running
    running.process.close()


def get(address: str, path: str) -> tuple[int, str]:
    """GET on a fresh connection."""
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def infer(connection: http.client.HTTPConnection, milliseconds: int = 0) -> int:
    """One inference. Returns the status."""
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [milliseconds]}
    connection.request("POST", "/v2/models/sleeper/infer", json.dumps({"inputs": [tensor]}))
    answer = connection.getresponse()
    answer.read()
    return answer.status


def ask(address: str) -> int:
    """One inference over a connection of its own. Returns the status."""
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        return infer(connection)
    finally:
        connection.close()


def value(address: str, series: str) -> float:
    """The value of one series of our metrics; 0 where there is none."""
    lines = get(address, "/metrics/own")[1].splitlines()
    found = [line for line in lines if line.startswith(f"{series} ")]
    return float(found[0].rpartition(" ")[2]) if found else 0.0


def live(address: str) -> dict[str, Any]:
    """What the page shows."""
    document: dict[str, Any] = json.loads(get(address, "/api/v1/live")[1])
    return document


def processes(serving: Serving) -> dict[str, int]:
    """Ids of the processes that the supervisor has started last, by role."""
    started = re.findall(r" process started role=(\S+) pid=(\d+)", serving.log)
    return {role: int(pid) for role, pid in started}


def kill(serving: Serving, role: str) -> None:
    """Kill one process, and wait until the next one with its role serves."""
    before = serving.log.count(f"process serves again role={role}")
    os.kill(processes(serving)[role], signal.SIGKILL)
    serving.until_logged(f"process serves again role={role}", before + 1)


def test_both_workers_serve_and_their_counts_are_one(lasting: Serving) -> None:
    addresses = lasting.until_serving()
    connections = [http.client.HTTPConnection(addresses["http"], timeout=30) for _ in range(16)]
    try:
        assert {infer(connection) for connection in connections * 3} == {200}
        wait_until(lambda: value(addresses["metrics"], _DONE) == 48, what="all requests counted")
        by_worker = [
            value(addresses["metrics"], f'triton_lb_worker_requests_total{{worker="{index}"}}')
            for index in (0, 1)
        ]
        assert sum(by_worker) == 48
        assert min(by_worker) > 0
        series = 'triton_lb_connections{protocol="http"}'
        assert value(addresses["metrics"], series) == 16
        rows: list[dict[str, Any]] = []

        def has_rates() -> bool:
            rows[:] = live(addresses["admin"])["workers"]
            return all(row["requests"] is not None for row in rows)

        wait_until(has_rates, what="two readings to tell rates by")
        assert sum(row["connections"] for row in rows) == 16
        assert [row["pid"] for row in rows] == [
            processes(lasting)["worker-0"], processes(lasting)["worker-1"],
        ]  # fmt: skip
        assert {(row["state"], row["restarts"]) for row in rows} == {("serving", 0)}
        assert min(row["requests"] for row in rows) >= 0
        assert min(row["cpu"] for row in rows) >= 0
    finally:
        for connection in connections:
            connection.close()
    wait_until(lambda: value(addresses["metrics"], series) == 0, what="no connection left")


def test_sigterm_answers_what_runs_and_ends_all(serving: Serving) -> None:
    addresses = serving.until_serving()
    slow = [http.client.HTTPConnection(addresses["http"], timeout=30) for _ in range(4)]
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(infer, connection, 2000) for connection in slow]
        wait_until(
            lambda: value(addresses["metrics"], "triton_lb_open_requests") == 4,
            what="four requests under way",
        )
        serving.signal(signal.SIGTERM)
        assert [answer.result() for answer in answers] == [200] * 4
    for connection in slow:
        connection.close()
    assert serving.process.wait(30) == 0
    assert not serving.process.group


def keep_asking(address: str, over: threading.Event) -> tuple[int, int]:
    """Send one request after the other, over a new connection after each failure. Returns how many
    were answered, and how many failed."""
    answered, failed = 0, 0
    connection = http.client.HTTPConnection(address, timeout=30)
    while not over.is_set():
        try:
            assert infer(connection, 5) == 200
            answered += 1
        except (OSError, http.client.HTTPException):
            failed += 1
            connection.close()
    connection.close()
    return answered, failed


def test_killed_worker_loses_its_connections_and_nothing_else(serving: Serving) -> None:
    addresses = serving.until_serving()
    over = threading.Event()
    with ThreadPoolExecutor() as pool:
        clients = [pool.submit(keep_asking, addresses["http"], over) for _ in range(4)]
        try:
            for role in ("worker-0", "worker-1", "worker-0"):
                kill(serving, role)
        finally:
            over.set()
        counts = [client.result() for client in clients]
    assert min(answered for answered, _ in counts) > 3
    # Each kill ends a connection of a client once at most.
    assert max(failed for _, failed in counts) <= 3, counts
    # What a worker counts and what all share in memory reach the metrics one after the other.
    for series in (
        "triton_lb_open_requests",
        'triton_lb_backend_in_flight{backend="only",protocol="http"}',
    ):
        wait_until(
            lambda: value(addresses["metrics"], series) == 0,  # noqa: B023  # it is called at once
            what=f"nothing of the dead workers counted in {series}",
        )
    assert [row["restarts"] for row in live(addresses["admin"])["workers"]] == [2, 1]


def test_workers_go_on_without_the_control_process(serving: Serving) -> None:
    addresses = serving.until_serving()
    with SteadyLoad(addresses["http"], addresses["grpc"]) as load:
        for _ in range(3):
            kill(serving, "control")
        answered = sum(load.answered.values())
        wait_until(lambda: sum(load.answered.values()) > answered + 20, what="further answers")
    load.check()
    wait_until(
        lambda: value(addresses["metrics"], 'triton_lb_worker_up{worker="1"}') == 1,
        what="workers found the control process again",
    )
    assert value(addresses["metrics"], _DONE) > 0


def test_counts_do_not_fall_when_the_control_process_dies(serving: Serving) -> None:
    addresses = serving.until_serving()
    assert {ask(addresses["http"]) for _ in range(10)} == {200}
    wait_until(lambda: value(addresses["metrics"], _DONE) == 10, what="all requests counted")
    kill(serving, "worker-0")
    os.kill(processes(serving)["control"], signal.SIGKILL)
    serving.until_logged("process has ended and is started again role=control")
    assert value(addresses["metrics"], _DONE) == 10  # the first scrape that is answered


def test_stopped_worker_does_not_stop_the_service(lasting: Serving) -> None:
    addresses = lasting.until_serving()
    worker = processes(lasting)["worker-0"]
    os.kill(worker, signal.SIGSTOP)
    try:
        assert {ask(addresses["http"]) for _ in range(30)} == {200}
        silent = 'triton_lb_worker_silent_seconds{worker="0"}'
        wait_until(lambda: value(addresses["metrics"], silent) > 1, what="the silence shown")
    finally:
        os.kill(worker, signal.SIGCONT)
    wait_until(lambda: value(addresses["metrics"], silent) < 1, what="the worker heard again")


def test_processes_that_stand_still_for_long_are_killed_and_replaced(serving: Serving) -> None:
    addresses = serving.until_serving()
    address = addresses["http"]
    with ThreadPoolExecutor() as pool:
        connections = [http.client.HTTPConnection(address, timeout=60) for _ in range(8)]
        assert {infer(connection) for connection in connections} == {200}
        before = processes(serving)
        for role in ("worker-0", "control"):
            os.kill(before[role], signal.SIGSTOP)
        answers = [pool.submit(infer, connection) for connection in connections]
        for role in ("worker-0", "control"):
            serving.until_logged(f"process stands still and is killed role={role}")
            serving.until_logged(f"process serves again role={role}")
        # Its clients hear that their connections are gone; those of the other worker are answered.
        for answer in answers:
            lost = answer.exception()
            assert answer.result() == 200 if lost is None else isinstance(lost, GONE)
        for connection in connections:
            connection.close()
    assert serving.log.count("is killed") == 2
    assert {ask(address) for _ in range(10)} == {200}
    assert get(addresses["metrics"], "/livez")[0] == 200
    assert value(addresses["metrics"], "triton_lb_control_process_starts_total") == 2


def test_stopped_control_process_does_not_stop_the_service(lasting: Serving) -> None:
    addresses = lasting.until_serving()
    control = processes(lasting)["control"]
    before = value(addresses["metrics"], _DONE)
    os.kill(control, signal.SIGSTOP)
    try:
        assert {ask(addresses["http"]) for _ in range(30)} == {200}
    finally:
        os.kill(control, signal.SIGCONT)
    wait_until(lambda: value(addresses["metrics"], _DONE) >= before + 30, what="requests counted")


def test_workers_end_with_the_supervisor(serving: Serving) -> None:
    addresses = serving.until_serving()
    with ThreadPoolExecutor() as pool:
        connection = http.client.HTTPConnection(addresses["http"], timeout=30)
        answer = pool.submit(infer, connection, 2000)
        wait_until(
            lambda: value(addresses["metrics"], "triton_lb_open_requests") == 1,
            what="a request under way",
        )
        os.kill(serving.process.pid, signal.SIGKILL)
        assert answer.result() == 200
    connection.close()
    wait_until(lambda: not serving.process.group, what="no process left")


def test_reloads_reach_all_workers(serving: Serving, config: dict[str, Any]) -> None:
    addresses = serving.until_serving()
    with SteadyLoad(addresses["http"], addresses["grpc"]) as load:
        for count in range(1, 21):
            changed = {**config, "limits": {"max_connections": 1000 + count}}
            serving.write(changed)
            serving.signal(signal.SIGHUP)
            serving.until_logged("configuration reloaded", count)
    load.check()
    assert "have not followed" not in serving.log
    serving.write({**config, "access": {"tokens": [{"name": "a", "token_sha256": _DIGEST}]}})
    assert serving.command("reload", "--admin", f"http://{addresses['admin']}").returncode == 0
    assert {ask(addresses["http"]) for _ in range(10)} == {401}
    kill(serving, "worker-0")
    kill(serving, "control")
    assert {ask(addresses["http"]) for _ in range(10)} == {401}


def test_workers_that_cannot_follow_go_on_until_they_can(
    serving: Serving, config: dict[str, Any], tmp_path: Path
) -> None:
    addresses = serving.until_serving()
    token = tmp_path / "client.token"
    token.write_text("0123456789abcdef0123456789abcdef")
    before = processes(serving)
    serving.write({**config, "access": {"tokens": [{"name": "a", "file": str(token)}]}})
    for role in ("worker-0", "worker-1"):
        os.kill(before[role], signal.SIGSTOP)
    try:
        serving.signal(signal.SIGHUP)
        serving.until_logged("configuration reloaded")
        token.unlink()
    finally:
        for role in ("worker-0", "worker-1"):
            os.kill(before[role], signal.SIGCONT)
    serving.until_logged("worker cannot follow the configuration", 2)
    assert {ask(addresses["http"]) for _ in range(10)} == {200}
    token.write_text("0123456789abcdef0123456789abcdef")
    wait_until(
        lambda: {ask(addresses["http"]) for _ in range(10)} == {401}, what="both workers follow"
    )
    assert processes(serving) == before


def test_the_pid_file_is_there_before_the_service_is_ready(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    metrics = f"127.0.0.1:{free_ports(1)[0]}"
    config["listen"]["metrics"] = metrics
    running = Serving(tmp_path, config)

    def is_ready() -> bool:
        try:
            return get(metrics, "/readyz")[0] == 200
        except GONE:
            return False

    try:
        wait_until(is_ready, timeout_s=60, interval_s=0.001, what="readiness")
        assert running.pid
    finally:
        running.process.close()


def test_reload_of_what_needs_a_restart_is_refused(
    lasting: Serving, config: dict[str, Any]
) -> None:
    addresses = lasting.until_serving()
    lasting.write({**config, "workers": 3})
    done = lasting.command("reload", "--admin", f"http://{addresses['admin']}")
    assert done.returncode == 1
    assert "needs a restart" in done.stdout + done.stderr
    lasting.write({**config, "listen": {**config["listen"], "http": "127.0.0.2:0"}})
    done = lasting.command("reload", "--admin", f"http://{addresses['admin']}")
    assert "need a restart" in done.stdout + done.stderr
    assert ask(addresses["http"]) == 200


def test_upgrades_lose_nothing_and_keep_what_operators_said(serving: Serving) -> None:
    addresses = serving.until_serving()
    admin = f"http://{addresses['admin']}"
    added = serving.command("add", "other", "--http", "127.0.0.1:1", "--admin", admin)
    assert added.returncode == 0, added.stderr
    pids = [serving.pid]
    with SteadyLoad(addresses["http"], addresses["grpc"]) as load:
        serving.signal(signal.SIGUSR2)
        wait_until(lambda: serving.pid not in pids, timeout_s=60, what="the next service")
        pids.append(serving.pid)
        done = serving.command("upgrade", "--admin", admin)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: serving.pid not in pids, timeout_s=60, what="the last service")
        wait_until(lambda: all(map(has_ended, pids)), timeout_s=60, what="the first ones ended")
        answered = sum(load.answered.values())
        wait_until(lambda: sum(load.answered.values()) > answered + 20, what="further answers")
    load.check()
    assert "other" in serving.command("status", "--admin", admin).stdout
    serving.signal(signal.SIGTERM)
    wait_until(lambda: not serving.process.group, what="no process left")


@contextmanager
def halting(serving: Serving, config: dict[str, Any]) -> Iterator[ProbeCounter]:
    """A next service whose control process has read its settings and waits for a probe."""
    serving.until_serving()
    with holding_successors(serving, config) as gate:
        probes = gate.count
        serving.signal(signal.SIGUSR2)
        gate.until_probed(probes + 1)
        yield gate


@pytest.fixture
def halted(serving: Serving, config: dict[str, Any]) -> Iterator[ProbeCounter]:
    """As `halting`."""
    with halting(serving, config) as gate:
        yield gate


def until_replaced(serving: Serving, halted: ProbeCounter) -> None:
    """Let the next service go on, and wait until it serves alone."""
    before = serving.pid
    halted.answers.set()
    wait_until(lambda: serving.pid != before, timeout_s=60, what="the next service")
    wait_until(lambda: has_ended(before), timeout_s=60, what="the end of the one before")


def test_a_reload_during_an_upgrade_is_refused_and_not_lost(
    serving: Serving, config: dict[str, Any], halted: ProbeCounter
) -> None:
    addresses = serving.until_serving()
    admin = f"http://{addresses['admin']}"
    serving.write({**config, "retry": {"attempts": 2}})
    done = serving.command("reload", "--admin", admin)
    assert done.returncode == 1
    assert "an upgrade is under way: ask again when it is over" in done.stderr
    serving.signal(signal.SIGHUP)
    until_replaced(serving, halted)
    serving.until_logged("reloaded role=control changed=retry.attempts by=SIGHUP")
    done = serving.command("reload", "--admin", admin)
    assert done.returncode == 0, done.stderr


def test_a_change_of_the_file_during_an_upgrade_is_not_lost(
    serving: Serving, config: dict[str, Any]
) -> None:
    serving.until_serving()
    config["reload"] = {"watch": True}
    with halting(serving, config) as halted:
        serving.write({**config, "retry": {"attempts": 2}})
        until_replaced(serving, halted)
        serving.until_logged("reloaded role=control changed=retry.attempts by=watch")


def test_a_reload_during_an_upgrade_that_fails_follows_it(
    serving: Serving, config: dict[str, Any], halted: ProbeCounter
) -> None:
    before = serving.pid
    serving.write({**config, "retry": {"attempts": 2}})
    serving.signal(signal.SIGHUP)
    next_service = int(re.findall(r"next service started pid=(\d+)", serving.log)[-1])
    os.kill(next_service, signal.SIGKILL)
    serving.until_logged("reloaded role=control changed=retry.attempts by=SIGHUP")
    assert serving.pid == before


def test_what_operators_say_during_an_upgrade_lives_on(
    serving: Serving, halted: ProbeCounter
) -> None:
    addresses = serving.until_serving()
    admin = f"http://{addresses['admin']}"
    for said in (
        ("add", "other", "--http", "127.0.0.1:1"),
        ("drain", "only"),
        ("drain", "only", "--model", "sleeper"),
    ):
        done = serving.command(*said, "--admin", admin)
        assert done.returncode == 0, done.stderr
    until_replaced(serving, halted)
    _, answer = get(addresses["admin"], "/api/v1/backends")
    only, _, other = json.loads(answer)["backends"]
    assert only["state"] == "draining"
    assert other["name"] == "other"
    serving.signal(signal.SIGTERM)
    wait_until(lambda: not serving.process.group, what="no process left")


def test_upgrade_to_a_configuration_that_cannot_be_read_changes_nothing(
    serving: Serving, config: dict[str, Any]
) -> None:
    addresses = serving.until_serving()
    serving.write({**config, "workers": 1})
    serving.signal(signal.SIGUSR2)
    serving.until_logged("upgrade failed, this service goes on")
    assert "needs a restart" in serving.log
    assert ask(addresses["http"]) == 200


def test_drain_concerns_all_workers_and_outlives_the_control_process(serving: Serving) -> None:
    addresses = serving.until_serving()
    admin = f"http://{addresses['admin']}"
    assert serving.command("drain", "only", "--admin", admin).returncode == 0
    assert {ask(addresses["http"]) for _ in range(10)} == {503}
    wait_until(lambda: '"draining"' in get(addresses["admin"], "/api/v1/backends")[1], what="state")
    kill(serving, "control")
    assert {ask(addresses["http"]) for _ in range(10)} == {503}
    assert serving.command("enable", "only", "--admin", admin).returncode == 0
    wait_until(lambda: ask(addresses["http"]) == 200, what="the backend used again")


def test_drain_of_a_backend_that_was_found_outlives_the_control_process(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    found = tmp_path / "backends.json"
    found.write_text(json.dumps(config["backends"]))
    running = Serving(tmp_path, {**config, "backends": [], "discovery": {"files": [str(found)]}})
    try:
        admin = running.until_serving()["admin"]
        assert running.command("drain", "only", "--admin", f"http://{admin}").returncode == 0
        for _ in range(2):  # the second one hears of it only from the first
            kill(running, "control")
            assert '"draining"' in get(admin, "/api/v1/backends")[1]
    finally:
        running.process.close()


def test_backends_are_probed_once(tmp_path: Path, config: dict[str, Any]) -> None:
    with ProbeCounter() as backend:
        config["backends"] = [{"name": "only", "http": backend.address}]
        config["workers"] = 4
        config["health"] = {"interval": "500ms"}
        serving = Serving(tmp_path, config)
        try:
            serving.until_serving()
            began, probes = time.monotonic(), backend.count
            wait_until(lambda: backend.count >= probes + 6, what="six probes")
            # An interval may vary by a fifth; five workers' own probes would take a fifth of this.
            assert time.monotonic() - began > 6 * 0.5 * 0.5
        finally:
            serving.process.close()


def test_probes_that_time_out_take_out_nobody_who_answers_requests(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    health = {"interval": "100ms", "timeout": "1s", "fall": 2}
    with ProbeCounter() as backend:
        config |= {"backends": [{"name": "busy", "http": backend.address}], "health": health}
        serving = Serving(tmp_path, config)
        try:
            addresses = serving.until_serving()
            backend.answers.clear()
            probes, statuses = backend.count + 5, set()
            while backend.count < probes:
                statuses.add(get(addresses["http"], "/v2/models/m/config")[0])
            # A pause of the machine may have it suspected, and it is the only one.
            assert statuses == {200}
            (view,) = json.loads(get(addresses["admin"], "/api/v1/backends")[1])["backends"]
            assert view["state"] in ("up", "suspected")
        finally:
            serving.process.close()


def test_stopped_processes_end_with_the_supervisor(serving: Serving) -> None:
    """They have the addresses that the next service needs."""
    serving.until_serving()
    found = processes(serving)
    for role in ("control", "worker-0"):
        os.kill(found[role], signal.SIGSTOP)
    os.kill(serving.process.pid, signal.SIGKILL)
    wait_until(lambda: not serving.process.group, what="no process left")


def test_service_that_cannot_start_says_so(tmp_path: Path, config: dict[str, Any]) -> None:
    config["access_log"] = {"path": str(tmp_path / "nowhere" / "access.log")}
    serving = Serving(tmp_path, config)
    try:
        assert serving.process.wait(30) == 1
        assert "cannot open" in serving.log
        assert "could not start" in serving.log
    finally:
        serving.process.close()


def _is_queued(address: str) -> bool:
    """Whether the page shows queued requests, in all and of their model."""
    document = live(address)
    (model,) = (each for each in document["models"] if each["name"] == "sleeper")
    return bool(document["summary"]["queued"] and model["queued"])


def test_a_limit_of_a_backend_holds_over_all_workers(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    config["scheduling"] = {"max_requests_per_backend": 2}
    serving = Serving(tmp_path, config)
    try:
        addresses = serving.until_serving()
        connections = [http.client.HTTPConnection(addresses["http"], timeout=30) for _ in range(16)]
        assert {infer(connection) for connection in connections} == {200}
        began = time.monotonic()
        with ThreadPoolExecutor(16) as pool:
            answers = [pool.submit(infer, connection, 150) for connection in connections]
            assert {answer.result() for answer in answers} == {200}
        took_s = time.monotonic() - began
        by_worker = [
            value(addresses["metrics"], f'triton_lb_worker_requests_total{{worker="{index}"}}')
            for index in (0, 1)
        ]
        assert min(by_worker) > 0
        # Two at a time take 1.2 s, two of each worker would take half of that.
        assert took_s > 1.0
        over = threading.Event()

        def keep_busy(connection: http.client.HTTPConnection) -> None:
            while not over.is_set():
                infer(connection, 150)

        with ThreadPoolExecutor(16) as pool:
            busy = [pool.submit(keep_busy, connection) for connection in connections]
            try:
                wait_until(lambda: _is_queued(addresses["admin"]), what="a queue on the page")
            finally:
                over.set()
            for each in busy:
                each.result()
        for connection in connections:
            connection.close()
    finally:
        serving.process.close()


def test_limits_of_a_client_hold_over_all_workers(tmp_path: Path, config: dict[str, Any]) -> None:
    config["workers"] = 4
    config["access"] = {
        "limits": [
            {"by": "header:x-rate", "requests_per_second": 100, "burst": 20},
            {"by": "header:x-count", "max_concurrent_requests": 3},
        ]
    }
    serving = Serving(tmp_path, config)
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [0]}

    def asked(connection: http.client.HTTPConnection, rate: str, count: str, sleep: int = 0) -> int:
        body = json.dumps({"inputs": [{**tensor, "data": [sleep]}]})
        headers = {"x-rate": rate, "x-count": count}
        connection.request("POST", "/v2/models/sleeper/infer", body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status

    try:
        address = serving.until_serving()["http"]
        connections = [http.client.HTTPConnection(address, timeout=60) for _ in range(16)]
        with ThreadPoolExecutor(16) as pool:

            def ask_many(number: int) -> list[int]:
                return [asked(connections[number], "a", str(number)) for _ in range(100)]

            began = time.monotonic()
            found = [status for each in pool.map(ask_many, range(16)) for status in each]
            took_s = time.monotonic() - began
            assert set(found) == {200, 429}
            # One for each of the workers may have been under way when the time was taken.
            assert 20 <= found.count(200) <= 100 * took_s + 20 + 4
            together = [
                pool.submit(asked, each, str(number), "b", 4000)
                for number, each in enumerate(connections)
            ]
            passed = [answer.result() for answer in together].count(200)
            # Workers that decide at once may each let one pass.
            assert 3 <= passed <= 3 + 3
        for connection in connections:
            connection.close()
    finally:
        serving.process.close()


def test_the_queue_is_one_for_all_workers(tmp_path: Path, config: dict[str, Any]) -> None:
    """Its size is that of all, and urgent requests go before those of other workers."""
    config["workers"] = 4
    config["scheduling"] = {
        "max_requests_per_backend": 1, "max_queue_size": 16, "priority_header": "x-priority",
    }  # fmt: skip
    serving = Serving(tmp_path, config)
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [300]}
    body = json.dumps({"inputs": [tensor]})
    ended: list[str] = []

    def ask_with(connection: http.client.HTTPConnection, priority: str) -> int:
        headers = {"x-priority": priority}
        connection.request("POST", "/v2/models/sleeper/infer", body, headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status == 200:
            ended.append(priority)
        return answer.status

    def queued(metrics: str) -> float:
        text = get(metrics, "/metrics/own")[1]
        found = re.findall(r"^triton_lb_queue_length\{[^}]*\} (\S+)", text, re.MULTILINE)
        return sum(map(float, found))

    try:
        addresses = serving.until_serving()
        with ThreadPoolExecutor(32) as pool:
            connections = [
                http.client.HTTPConnection(addresses["http"], timeout=90) for _ in range(32)
            ]
            low = [pool.submit(ask_with, each, "3") for each in connections[:12]]
            wait_until(lambda: queued(addresses["metrics"]) >= 5, what="requests queued")
            high = [pool.submit(ask_with, each, "1") for each in connections[12:15]]
            assert [each.result() for each in (*high, *low)] == [200] * 15
            assert ended[-1] == "3"
            many = [pool.submit(ask_with, each, "2") for each in connections]
            found = [each.result() for each in many]
        assert set(found) == {200, 503}
        # One runs, 16 are queued. With a queue for each worker all 32 would be.
        assert found.count(200) >= 16
        for connection in connections:
            connection.close()
    finally:
        serving.process.close()


class KeepingAsTriton(Keeping):
    """The same in the words of a Triton, upon which the next backend by the hash is asked."""

    refusal = (
        b'{"error":"inference request for sequence 1 to model \'simple_sequence\' must specify the '
        b'START flag on the first request of the sequence"}'
    )


def test_steps_of_a_sequence_find_their_backend_from_all_workers(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    with keeping_servers(config, 3, KeepingAsTriton) as servers:
        # A step may be quicker than the news of its START, and then finds its backend by the hash:
        # the first, or the next ones where the first had too many sequences.
        config["sequences"] = {"affinity": "rendezvous"}
        config["workers"] = 3
        serving = Serving(tmp_path, config)
        try:
            address = serving.until_serving()["http"]
            connections = [http.client.HTTPConnection(address, timeout=30) for _ in range(12)]
            for number in range(1, 41):
                steps = [connections[(number * 5 + at * 7) % 12] for at in range(4)]
                found = [step(each, number, start=not at) for at, each in enumerate(steps)]
                assert found == [200] * 4, number
            for connection in connections:
                connection.close()
            kept = [len(server.known) for server in servers]  # type: ignore[attr-defined]
            assert sum(kept) == 40  # each at one server
            assert min(kept) > 0
        finally:
            serving.process.close()
