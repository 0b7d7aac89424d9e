from __future__ import annotations

import socket

import pytest

from lb.simulator.__main__ import main


@pytest.mark.parametrize(
    "arguments", [["--speed", "0"], ["--speed", "x"], ["--models", "unknown"], ["--http-port", "x"]]
)
def test_wrong_arguments_are_named(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert f"argument {arguments[0]}" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["--http-port", "--grpc-port", "--metrics-port"])
def test_taken_port_is_told_in_one_line(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as ended:
        main([port, str(taken.getsockname()[1])])
    assert str(ended.value.code).startswith("simulator: cannot listen: ")
    assert capsys.readouterr().out == ""
