from __future__ import annotations

import json

import pytest

from lb.domain.backend import Address
from lb.settings import wording
from lb.settings.listed import read_backend, read_backends
from lb.settings.model import Settings
from lb.settings.problems import MAX_PROBLEMS, MORE_PROBLEMS, Problem, SettingsError
from lb.settings.relations import own_addresses

OURS = {"listen.http": Address("127.0.0.1", 8000)}


def names(text: str) -> list[str]:
    return [entry.spec().name for entry in read_backends(text, OURS, 1000)]


def problems(text: str) -> list[tuple[int, str]]:
    with pytest.raises(SettingsError) as raised:
        read_backends(text, OURS, 1000)
    return [(each.line, str(each)) for each in raised.value.problems]


@pytest.mark.parametrize(
    "text",
    [
        "- http: a:1\n- {name: x, grpc: 'b:2'}\n",
        "backends:\n  - http: a:1\n  - name: x\n    grpc: b:2\n",
        json.dumps([{"http": "a:1"}, {"name": "x", "grpc": "b:2"}]),
        json.dumps({"backends": [{"http": "a:1"}, {"name": "x", "grpc": "b:2"}]}, indent="\t"),
    ],
)
def test_a_list_may_be_yaml_or_json_with_or_without_its_key(text: str) -> None:
    assert names(text) == ["a:1", "x"]


def test_an_empty_list_is_one() -> None:
    assert names("[]") == names("backends: []") == []


@pytest.mark.parametrize("reference", ["${TOKEN}", "${file:/etc/hostname}", "$${", "a${"])
def test_whoever_names_backends_cannot_have_files_or_the_environment_read(reference: str) -> None:
    for text in (
        f"- name: '{reference}'\n  http: a:1",
        f"- http: a:1\n  headers: {{x: '{reference}'}}",
    ):
        with pytest.raises(SettingsError, match="only for the configuration file"):
            read_backends(text, {}, 1000)


def test_every_setting_of_a_backend_may_be_given() -> None:
    text = "- http: a:1\n  weight: 2\n  headers: {authorization: secret}\n  health: {fall: 9}\n"
    (entry,) = read_backends(text, {}, 1000)
    assert (entry.weight, entry.health.fall) == (2.0, 9)
    assert entry.headers == {"authorization": "secret"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", [(0, "the file is empty")]),
        ("x", [(1, "expected a list, or a mapping with backends")]),
        ("servers: []", [(1, "servers: unknown key; did you mean backends?")]),
        (
            "- http: a:1\n- http: a:1\n",
            [(2, "backends[1].name: 'a:1' is already the name of backends[0]")],
        ),
        (
            "- name: x\n- htp: a:1\n  grpc: b:70000\n",
            [
                (1, "backends[0]: at least one of http and grpc is needed"),
                (2, "backends[1].htp: unknown key; did you mean http?"),
                (3, "backends[1].grpc: port must be 0 to 65535, got '70000'"),
            ],
        ),
        (
            "- http: localhost:8000\n",
            [(1, "backends[0].http: localhost:8000 is our own listener listen.http")],
        ),
        ('[{"http": "a:1",}', [(1, "not valid YAML: ")]),
    ],
)
def test_every_problem_of_a_list_is_told_with_its_line(
    text: str, found: list[tuple[int, str]]
) -> None:
    told = problems(text)
    assert [line for line, _ in told] == [line for line, _ in found]
    for (_, message), (_, start) in zip(told, found, strict=True):
        assert message.startswith(start)


def test_entries_that_are_too_many_are_not_read() -> None:
    read = read_backends("[{http: a:1}, {http: a:2}, {http: a:3}, {http: a:4}, a]", OURS, 4)
    assert [entry.known_as for entry in read] == ["a:1", "a:2", "a:3", "a:4"]


@pytest.mark.parametrize(
    "text",
    [
        f"[{'a,' * 5000}]",
        f"[{'{},' * 2000}]",
        f"[{'{http: a},' * 2000}]",
        f"[{'{http: a:1},' * 2000}]",
        f"[{'!a b,' * 2000}]",
        f"[{{http: a:1, {','.join(f'k{number}: 1' for number in range(5000))}}}]",
        f"[{{http: a:1, health: {{expected_status: [{'1,' * 5000}]}}}}]",
    ],
)
def test_problems_are_looked_for_until_there_are_enough(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    described: list[object] = []
    describe = wording._describe
    monkeypatch.setattr(
        wording, "_describe", lambda *given: described.append(given) or describe(*given)
    )
    with pytest.raises(SettingsError) as raised:
        read_backends(text, {}, 1000)
    assert len(raised.value.problems) == MAX_PROBLEMS + 1
    assert raised.value.problems[-1] == MORE_PROBLEMS
    assert len(described) <= MAX_PROBLEMS + 1


def test_headers_are_never_shown() -> None:
    ((_, message),) = problems("- http: a:1\n  headers: {x: [secret]}\n")
    assert "secret" not in message


def test_problems_of_one_backend_are_told_without_the_list_around_it() -> None:
    assert read_backend({"http": "a:1"}, OURS).spec().name == "a:1"
    with pytest.raises(SettingsError) as raised:
        read_backend({"name": "x", "wheight": 2}, OURS)
    assert raised.value.problems == (
        Problem("wheight", "unknown key; did you mean weight?"),
        Problem("", "at least one of http and grpc is needed"),
    )


def test_own_addresses_are_those_of_all_listeners() -> None:
    settings = Settings.model_validate(
        {
            "listen": {"http": "a:1", "admin": "b:2"},
            "fronts": {"sagemaker": {"enabled": True, "address": "c:3"}},
        }
    )
    assert {name: str(address) for name, address in own_addresses(settings).items()} == {
        "listen.http": "a:1",
        "listen.admin": "b:2",
        "fronts.sagemaker": "c:3",
    }
