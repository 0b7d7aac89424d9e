"""The arguments of `triton-lb generate`."""

from __future__ import annotations

from pathlib import Path

import pytest

from lb.cli.generate_arguments import GenerateOptions, options_of
from lb.cli.main import build_parser
from lb.generate.stack import Options, ServerKind, Target


def parsed(*arguments: str) -> GenerateOptions:
    return options_of(build_parser().parse_args(["generate", *arguments]))


def test_nothing_but_a_target_is_needed() -> None:
    assert parsed("compose") == GenerateOptions(
        target=Target.COMPOSE,
        options=Options(command="triton-lb generate compose"),
        folder=Path("triton-stack"),
    )


def test_devices_are_a_list() -> None:
    assert parsed("systemd", "--devices", "0, 1:3,").devices == ("0", "1:3")


def test_choices_reach_the_stack() -> None:
    options = parsed(
        *("compose", "--server", "tfserving", "--grafana", "--admin", "127.0.0.1:9"),
        *("--server-arg=--a=1", "--server-arg=--b", "--lb-image", "x:1"),
    ).options
    assert options.server is ServerKind.TFSERVING
    assert options.prometheus
    assert options.listen.admin == "127.0.0.1:9"
    assert options.server_args == ("--a=1", "--b")
    assert options.balancer_image == "x:1"


@pytest.mark.parametrize(
    "arguments",
    [
        ["helm"],
        ["compose", "--gpus", "0"],
        ["compose", "--gpus", "1", "--from", "x"],
        ["compose", "--cpu", "1", "--gpus", "1"],
        ["compose", "--server", "vllm"],
    ],
)
def test_usage_errors_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed(*arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("triton-lb generate: ")
