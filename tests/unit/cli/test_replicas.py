"""One command for several processes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lb.admin.operations import CONFIG, STATUS
from lb.cli.admin_client import AdminError, AdminTarget
from lb.cli.main import main
from lb.cli.replicas import addresses_of, ask_each, with_replicas
from tests.fakes.views import backend, backends, status
from tests.unit.cli.test_admin import answering, answering_paths


def test_an_address_is_taken_as_it_is() -> None:
    given = ["http://lb.example:8003", "unix:/run/lb.sock", "http://lb.example:8003"]
    assert addresses_of(given, "--admin", every=False) == given[:2]


def test_a_name_stands_for_all_of_its_addresses() -> None:
    given = ["http://127.0.0.1:8003/", "unix:/run/lb.sock", "[::1]:8003"]
    assert addresses_of(given, "--admin", every=True) == [
        "127.0.0.1:8003",
        "unix:/run/lb.sock",
        "[::1]:8003",
    ]
    assert "127.0.0.1:1" in addresses_of(["localhost:1"], "--admin", every=True)


@pytest.mark.parametrize("given", ["no-port", "no.such.host.invalid:1"])
def test_what_leads_nowhere_is_told(given: str) -> None:
    with pytest.raises(AdminError, match="--admin"):
        addresses_of([given], "--admin", every=True)


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


def body(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()


def test_the_status_of_all_is_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    one = body(status(1, in_flight=3, served=10, b="down"))
    two = body(status(2))
    with answering(one) as (first, _), answering(two) as (second, _):
        assert main(["status", "--admin", first, "--admin", f"http://{second}", "--all"]) == 0
        assert sorted(capsys.readouterr().out.splitlines()) == sorted([
            f"{first}  1 of 2 backends up (b down), 3 in flight, 10 served",
            f"{second}  2 of 2 backends up, 0 in flight, 0 served",
        ])  # fmt: skip
        assert main(["status", "--admin", first]) == 0
        assert capsys.readouterr().out == "1 of 2 backends up (b down), 3 in flight, 10 served\n"


def test_one_that_fails_makes_the_command_fail(capsys: pytest.CaptureFixture[str]) -> None:
    changed = body(backend("a", state="draining", empty=True))
    with answering(changed) as (first, asked):
        nobody = "127.0.0.1:1"
        assert main(["drain", "a", "--wait", "--admin", first, "--admin", nobody]) == 1
    assert asked == ["POST /api/v1/backends/a/drain"]
    shown = capsys.readouterr()
    assert shown.out == f"{first}  a: draining, 0 in flight\n{first}  a: drained\n"
    assert f"{nobody}" in shown.err
    assert "cannot reach the admin API" in shown.err


def test_json_of_several_says_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = backends(backend("a")), backends(backend("b"))
    with answering(body(one)) as (first, _), answering(body(two)) as (second, _):
        nobody = "127.0.0.1:1"
        commands = [part for each in (first, second, nobody) for part in ("--admin", each)]
        assert main(["backends", "--json", *commands]) == 1
    shown = capsys.readouterr()
    lines = [json.loads(line) for line in shown.out.splitlines()]
    assert sorted(lines, key=lambda line: str(line["answer"])) == [
        {"admin": first, "answer": one},
        {"admin": second, "answer": two},
    ]
    assert shown.err.startswith(nobody)


def test_all_includes_the_replicas_that_a_process_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with answering_paths({STATUS: status(2)}) as second:
        named = [f"http://{second}", "http://127.0.0.1:1"]
        config = {"admin": {"replicas": named}}
        with answering_paths({STATUS: status(1), CONFIG: config}) as first:
            config["admin"]["replicas"].append(f"http://{first}")  # the list of all, shared
            assert main(["status", "--all", "--admin", first]) == 1
            shown = capsys.readouterr()
            assert main(["status", "--admin", first]) == 0
    assert sorted(each.split()[0] for each in shown.out.splitlines()) == sorted([first, second])
    assert shown.err.startswith("127.0.0.1:1 ")


def test_a_process_that_names_nonsense_is_asked_alone() -> None:
    for config in ({}, {"admin": 1}, {"admin": {"replicas": 1}}, {"admin": {"replicas": [1]}}):
        with answering_paths({CONFIG: config}) as address:
            assert with_replicas([AdminTarget(address)]) == [AdminTarget(address)]


def test_the_status_of_all_says_which_shares_differ_from_the_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    share = {"variant": "detector/canary", "percent": 0, "file_percent": 5, "changed": "rollback"}
    one, two = body(status(1) | {"changed_shares": [share]}), body(status(1))
    with answering(one) as (first, _), answering(two) as (second, _):
        assert main(["status", "--admin", first, "--admin", second]) == 0
        assert sorted(capsys.readouterr().out.splitlines()) == sorted(
            [
                f"{first}  1 of 1 backends up, 0 in flight, 0 served; "
                "detector/canary 0 % (file: 5 %, rollback)",
                f"{second}  1 of 1 backends up, 0 in flight, 0 served",
            ]
        )


@pytest.mark.parametrize("answer", [body(status(0, a="down")), body(status(0)), b"[]"])
def test_the_status_is_bad_without_a_backend_that_is_up(answer: bytes) -> None:
    with answering(answer) as (address, _):
        assert main(["status", "--admin", address]) == 1


def test_a_bad_address_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", {})
    assert main(["status", "--all", "--admin", "nothing"]) == 1
    assert "triton-lb: --admin: expected http://HOST:PORT" in capsys.readouterr().err
