"""One command for several processes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lb.cli.admin import AdminError, AdminTarget
from lb.cli.main import main
from lb.cli.replicas import addresses_of, ask_each
from tests.unit.cli.test_admin import answering, backend


def test_an_address_is_taken_as_it_is() -> None:
    given = ["http://lb.example:8003", "unix:/run/lb.sock", "http://lb.example:8003"]
    assert addresses_of(given, every=False) == given[:2]


def test_a_name_stands_for_all_of_its_addresses() -> None:
    given = ["http://127.0.0.1:8003/", "unix:/run/lb.sock", "[::1]:8003"]
    assert addresses_of(given, every=True) == ["127.0.0.1:8003", "unix:/run/lb.sock", "[::1]:8003"]
    assert "127.0.0.1:1" in addresses_of(["localhost:1"], every=True)


@pytest.mark.parametrize("given", ["no-port", "no.such.host.invalid:1"])
def test_what_leads_nowhere_is_told(given: str) -> None:
    with pytest.raises(AdminError, match="--admin"):
        addresses_of([given], every=True)


def test_every_line_says_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    targets = [AdminTarget("a:1"), AdminTarget("long:22")]

    def ask(admin: AdminTarget) -> int:
        print(f"{admin.address} one\ntwo", file=admin.out)
        print("three", file=admin.err)
        return int(admin.address == "a:1")

    assert ask_each(targets, ask) == 1
    shown = capsys.readouterr()
    assert sorted(shown.out.splitlines()) == [
        "a:1      a:1 one",
        "a:1      two",
        "long:22  long:22 one",
        "long:22  two",
    ]
    assert sorted(shown.err.splitlines()) == ["a:1      three", "long:22  three"]


def status(*backends: dict[str, Any]) -> bytes:
    return json.dumps({"backends": backends}).encode()


def test_the_status_of_all_is_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    one = status(backend("a", in_flight=3, served=9), backend("b", state="down", served=1))
    two = status(backend("a"), backend("b"))
    with answering(one) as (first, _), answering(two) as (second, _):
        assert main(["status", "--admin", first, "--admin", f"http://{second}", "--all"]) == 0
        assert sorted(capsys.readouterr().out.splitlines()) == sorted([
            f"{first}  1 of 2 backends up (b down), 3 in flight, 10 served",
            f"{second}  2 of 2 backends up, 0 in flight, 0 served",
        ])  # fmt: skip
        assert main(["status", "--admin", first]) == 0
        assert capsys.readouterr().out == "1 of 2 backends up (b down), 3 in flight, 10 served\n"


def test_one_that_fails_makes_the_command_fail(capsys: pytest.CaptureFixture[str]) -> None:
    changed = json.dumps(backend("a", state="draining", empty=True)).encode()
    with answering(changed) as (first, asked):
        nobody = "127.0.0.1:1"
        assert main(["drain", "a", "--wait", "--admin", first, "--admin", nobody]) == 1
    assert asked == ["POST /api/v1/backends/a/drain"]
    shown = capsys.readouterr()
    assert shown.out == f"{first}  a: draining, 0 in flight\n"
    assert f"{nobody}" in shown.err
    assert "cannot reach the admin API" in shown.err


@pytest.mark.parametrize("body", [status(backend("a", state="down")), status(), b"[]"])
def test_the_status_is_bad_without_a_backend_that_is_up(body: bytes) -> None:
    with answering(body) as (address, _):
        assert main(["status", "--admin", address]) == 1


def test_a_bad_address_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", {})
    assert main(["status", "--all", "--admin", "nothing"]) == 1
    assert "triton-lb: --admin: expected HOST:PORT" in capsys.readouterr().err
