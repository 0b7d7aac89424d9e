"""Files that never answer: FIFOs in their place, and file systems that hang."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lb.simulator.process import Ports
from tests.fakes.process import ENVIRONMENT, ChildProcess, wait_until
from tests.fakes.serving import Serving, get
from tests.fakes.tls import World

END_S = 30.0
"""Within this time a process ends that has nothing to wait for, however busy the machine is."""
OLD, NEW = "an-old-secret-0123456789", "a-new-secret-0123456789"


class Files:
    """A configuration that uses a file of each kind, and a process that reads them."""

    def __init__(self, folder: Path, triton: Ports) -> None:
        self.folder = folder
        self.world = World(folder)
        self.triton = triton
        self.config = folder / "config.yaml"
        self.token = folder / "team.token"
        self.listed = folder / "backends.yaml"
        self.certificate, self.key = map(Path, self.world.server)
        self.ca = folder / "backends.pem"
        self.marker = folder / "hanging"
        self.token.write_text(OLD + "\n")
        self.ca.write_bytes(Path(self.world.ca).read_bytes())
        self.marker.write_text("")
        self.list("first")
        self.configure()

    @property
    def watched(self) -> dict[str, Path]:
        return {
            "config": self.config,
            "token": self.token,
            "key": self.key,
            "listed": self.listed,
            "ca": self.ca,
        }

    def list(self, name: str) -> None:
        ports = self.triton
        http, grpc = (f"127.0.0.1:{port}" for port in (ports.http_port, ports.grpc_port))
        self.replace(self.listed, yaml.safe_dump([{"name": name, "http": http, "grpc": grpc}]))

    def configure(self, **more: Any) -> None:
        pair = {"certificate": str(self.certificate), "key": str(self.key)}
        listen: dict[str, Any] = dict.fromkeys(("http", "metrics", "admin"), "127.0.0.1:0")
        listen["https"] = {"address": "127.0.0.1:0", "tls": {"certificates": [pair]}}
        config = {
            "listen": listen,
            "discovery": {"files": [str(self.listed)]},
            "reload": {"watch": True},
            # Nothing answers there; its authority is read all the same.
            "backends": [{"name": "secure", "http": "127.0.0.1:1", "tls": {"ca": str(self.ca)}}],
            "access": {
                "open_health": True,
                "tokens": [{"name": "team", "file": str(self.token), "roles": ["infer"]}],
            },
            **more,
        }
        self.replace(self.config, yaml.safe_dump(config))

    def replace(self, path: Path, text: str) -> None:
        fresh = self.folder / "fresh"
        fresh.write_text(text)
        os.replace(fresh, path)

    def replace_by_fifo(self, path: Path) -> None:
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        os.replace(fifo, path)

    def hang(self, *paths: Path) -> None:
        """Have these files, and no others, not answer from now on."""
        self.replace(self.marker, "\n".join(map(str, paths)))

    def command(self, fake: str = "hanging") -> tuple[str, ...]:
        serve = ("serve", "--config", str(self.config), "--pid-file", str(self.folder / "lb.pid"))
        return (sys.executable, "-m", f"tests.fakes.{fake}", str(self.marker), *serve)


class Running(Serving):
    """A process that was started on such files."""

    def __init__(self, files: Files, fake: str = "hanging") -> None:
        self.process = ChildProcess(
            files.command(fake), log=files.folder / "serve.log", env=ENVIRONMENT
        )

    def until_logged(self, text: str, count: int = 1) -> None:
        wait_until(lambda: self.log.count(text) >= count, timeout_s=30, what=f"{text} in the log")

    def end(self) -> int:
        self.process.signal(signal.SIGTERM)
        return self.process.wait(END_S)


@pytest.fixture
def files(tmp_path: Path, triton: Ports) -> Files:
    return Files(tmp_path, triton)


@pytest.fixture
def running(files: Files) -> Iterator[Running]:
    made = Running(files)
    try:
        yield made
    finally:
        made.process.close()


@pytest.mark.parametrize("kind", ["config", "token", "key", "ca"])
def test_a_start_with_a_fifo_is_refused_with_a_reason(files: Files, kind: str) -> None:
    path = files.watched[kind]
    files.replace_by_fifo(path)
    done = subprocess.run(
        files.command(), env=ENVIRONMENT, capture_output=True, text=True, timeout=END_S, check=False
    )
    assert done.returncode == 1
    assert "it is a FIFO or pipe, not a regular file" in done.stderr
    assert str(path) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_fifo_in_the_place_of_any_file_stops_nothing(files: Files, running: Running) -> None:
    addresses = running.until_serving()
    running.until_logged("source has found backends")
    for path in files.watched.values():
        files.replace_by_fifo(path)
    running.until_logged("it is a FIFO or pipe, not a regular file", 5)
    running.process.signal(signal.SIGHUP)
    running.until_logged("configuration refused", 2)
    assert get(addresses["http"], "/v2/health/live")[0] == 200
    assert running.end() == 0


def test_files_that_hang_stop_neither_requests_nor_other_files_nor_the_end(
    files: Files, running: Running
) -> None:
    addresses = running.until_serving()
    # Not the token, which shows that the others are still followed.
    hanging = [files.config, files.key, files.listed, files.ca, files.folder / "lb.pid"]
    files.hang(*hanging)
    running.until_logged("file does not answer", 5)
    running.process.signal(signal.SIGHUP)
    running.until_logged("configuration refused")
    files.replace(files.token, NEW + "\n")
    running.until_logged("tokens reloaded")
    assert get(addresses["http"], "/v2/health/live")[0] == 200
    page = get(addresses["metrics"], "/metrics")[1].decode()
    for path in (files.key, files.listed, files.ca):
        assert f'triton_lb_file_stalls_total{{file="{path}"}}' in page
    assert running.end() == 0


def test_a_file_that_answers_again_is_followed_again(files: Files, running: Running) -> None:
    running.until_serving()
    running.until_logged("source has found backends")
    files.hang(files.listed)
    running.until_logged("file does not answer")
    files.list("second")
    files.hang()
    running.until_logged("file answers again")
    running.until_logged("backend=second")
    assert running.end() == 0


@pytest.mark.parametrize("kind", ["token", "key", "config"])
def test_a_start_with_a_file_that_hangs_can_be_ended(files: Files, kind: str) -> None:
    files.hang(files.watched[kind])
    made = Running(files)
    try:
        hangs = files.folder / "hanging.hangs"
        wait_until(hangs.exists, timeout_s=END_S, what="a file that hangs")
        made.process.signal(signal.SIGTERM)
        assert made.process.wait(END_S) == -signal.SIGTERM
    finally:
        made.process.close()


def test_a_backends_certificates_are_read_beside_the_traffic(
    files: Files, running: Running
) -> None:
    addresses = running.until_serving()
    late = files.folder / "late.pem"
    late.write_bytes(files.ca.read_bytes())
    files.hang(late)
    more = [{"name": "late", "http": "127.0.0.1:1", "tls": {"ca": str(late)}}]
    files.replace(files.listed, yaml.safe_dump(more))
    running.until_logged("file does not answer")
    assert get(addresses["http"], "/v2/health/live")[0] == 200
    files.hang()
    running.until_logged("certificates loaded")
    assert ssl.create_default_context(cafile=str(late))
    assert running.end() == 0


def test_signals_that_come_too_early_wait_until_they_can_be_acted_on(files: Files) -> None:
    files.hang(files.config)
    made = Running(files)
    try:
        wait_until((files.folder / "hanging.hangs").exists, timeout_s=END_S, what="a hanging file")
        for _ in range(3):
            for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGUSR2):
                made.process.signal(number)
        files.hang()
        made.until_logged("process before this one has ended")
        assert made.log.count(" by=SIGHUP") == 1
        assert made.log.count("next process started by=SIGUSR2") == 1
        assert made.process.wait(END_S) == 0
    finally:
        made.process.close()


NO_THREAD = "no thread can be started to read files"


@pytest.fixture
def threadless(files: Files, triton: Ports) -> Iterator[Running]:
    """A process that is ready but for its PID file: as long as there is the marker, it has no
    thread that could write that."""
    backend = {"name": "one", "http": f"127.0.0.1:{triton.http_port}"}
    listen = {"http": f"unix:{files.folder}/http.sock"}
    files.replace(files.config, yaml.safe_dump({"listen": listen, "backends": [backend]}))
    made = Running(files, "threadless")
    try:
        made.until_logged(NO_THREAD)
        yield made
    finally:
        made.process.close()


def test_a_start_without_a_thread_can_be_ended(files: Files, threadless: Running) -> None:
    assert threadless.end() == 0
    assert "Traceback" not in threadless.log
    assert not (files.folder / "lb.pid").exists()


def test_files_are_followed_once_there_is_a_thread_again(files: Files) -> None:
    files.marker.unlink()
    made = Running(files, "threadless")
    try:
        made.until_serving()
        made.until_logged("source has found backends")
        files.marker.write_text("")
        files.list("second")
        made.until_logged(NO_THREAD)
        files.marker.unlink()
        made.until_logged("backend=second")
        assert made.log.count(NO_THREAD) == 1
        assert made.end() == 0
    finally:
        made.process.close()


def test_the_pid_file_is_there_before_readiness_is_told(files: Files, threadless: Running) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(files.folder / "http.sock"))
        client.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\n\r\n")
        files.marker.unlink()
        client.settimeout(END_S)
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert int((files.folder / "lb.pid").read_text()) == threadless.process.pid
