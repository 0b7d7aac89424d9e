"""`triton-lb completion`: scripts for shells, and what to do without the library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lb.cli.main import main


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["dr"], "drain"),
        (["generate", "sys"], "systemd"),
        (["drain", "gpu-0", "--li"], "--limit"),
        (["completion", "fi"], "fish"),
    ],
)
def test_bash_completes(
    words: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "triton-lb"
    file.write_text(script("bash", capsys))
    play = (
        f"source {file}\n"
        "complete=$(complete -p triton-lb); function=${complete#*-F }; function=${function%% *}\n"
        f"COMP_WORDS=(triton-lb {' '.join(words)}); COMP_CWORD={len(words)}\n"
        "$function; echo ${COMPREPLY[@]}\n"
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", play], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [expected]


@pytest.mark.parametrize(
    ("shell", "starts", "holds"),
    [
        ("zsh", "#compdef triton-lb", "{-q,--quiet}"),
        ("fish", "# ", "complete -c triton-lb"),
    ],
)
def test_other_shells_have_scripts(
    shell: str, starts: str, holds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = script(shell, capsys)
    assert text.lstrip().startswith(starts)
    assert holds in text
    for word in ("drain", "kubernetes", "--fail-if-degraded"):
        assert word.removeprefix("--") in text


def test_without_the_library_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert capsys.readouterr() == (
        "",
        "triton-lb: completion needs shtab: pip install 'triton-lb[completion]'\n",
    )
