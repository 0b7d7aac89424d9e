"""The configuration's three faces agree: models, example files and documentation."""

from __future__ import annotations

import re
from pathlib import Path as FilePath

import pytest

from lb.settings.access import ClientLimitSettings, ControlSettings, TokenSettings
from lb.settings.backends import BackendSettings, BackendTlsSettings
from lb.settings.discovery import DnsSettings
from lb.settings.document import document
from lb.settings.examples import EXAMPLES
from lb.settings.fronts import SageMakerSettings, VertexSettings
from lb.settings.json_schema import json_schema
from lb.settings.kubernetes import KubernetesSettings
from lb.settings.listening import (
    CertificateSettings,
    ListenerSettings,
    ListenerTlsSettings,
    RelayListenerSettings,
)
from lb.settings.model import Settings
from lb.settings.problems import Path, format_path
from lb.settings.reading import read_settings
from lb.settings.scheduling import ModelSettings
from lb.settings.section import Section, key_of
from lb.settings.shadow import ShadowSettings
from lb.settings.shape import meanings
from lb.settings.standby import ActivateSettings, DeactivateSettings
from lb.settings.tree import parse_tree
from lb.settings.variants import (
    MatchSettings,
    RampSettings,
    RollbackSettings,
    VariantSettings,
)

ROOT = FilePath(__file__).parents[2]
CONFIG = ROOT / "config"
FULL = CONFIG / "full.yaml"


def read(path: FilePath) -> Settings:
    return read_settings(path.read_text(), {}, lambda name: FilePath(name).read_text())


TOP = {
    (name,): field.annotation
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}
SECTIONS: dict[Path, type[Section]] = {
    (): Settings,
    **TOP,
    ("listen", "http"): ListenerSettings,
    ("listen", "https"): RelayListenerSettings,
    ("listen", "https", "tls"): ListenerTlsSettings,
    ("listen", "https", "tls", "certificates", 0): CertificateSettings,
    ("backends", 0): BackendSettings,
    ("backends", 0, "tls"): BackendTlsSettings,
    ("backends", 1, "activate"): ActivateSettings,
    ("backends", 1, "deactivate"): DeactivateSettings,
    ("discovery", "dns", 0): DnsSettings,
    ("discovery", "kubernetes", 0): KubernetesSettings,
    ("access", "tokens", 0): TokenSettings,
    ("access", "control"): ControlSettings,
    ("access", "limits", 0): ClientLimitSettings,
    ("fronts", "sagemaker"): SageMakerSettings,
    ("fronts", "vertex"): VertexSettings,
    ("models", "example"): ModelSettings,
    ("models", "example", "variants", 0): VariantSettings,
    ("models", "example", "variants", 0, "match"): MatchSettings,
    ("models", "example", "ramp"): RampSettings,
    ("models", "example", "rollback"): RollbackSettings,
    ("models", "example", "shadow"): ShadowSettings,
}
"""Where the full file shows each section."""
SETTINGS = [
    ((*place, key_of(name)), text)
    for place, section in SECTIONS.items()
    for name, text in meanings(section).items()
]


_PORTS = {"http_port", "grpc_port", "metrics_port"}


def test_every_section_with_settings_is_looked_at() -> None:
    direct = Section.__subclasses__()
    sections = {*direct, *(each for section in direct for each in section.__subclasses__())}
    sections = {section for section in sections if section.model_fields}
    assert sections == set(SECTIONS.values())


@pytest.mark.parametrize("path", sorted(CONFIG.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_file_is_good(path: FilePath) -> None:
    assert read(path).specs()


def test_every_setting_stands_in_the_full_file_and_is_explained() -> None:
    text = FULL.read_text()
    lines, numbers = text.splitlines(), parse_tree(text, str).lines
    assert [format_path(path) for path, _ in SETTINGS if path not in numbers] == []
    of_their_own = {("backends",), *SECTIONS}
    settings = [(path, meaning) for path, meaning in SETTINGS if path not in of_their_own]
    without = [(p, m) for p, m in settings if "  # " not in lines[numbers[p] - 1] or not m]
    assert without == []


@pytest.mark.parametrize(
    ("path", "meaning"), SETTINGS, ids=[format_path(path) for path, _ in SETTINGS]
)
def test_every_setting_says_when_to_set_it_and_what_happens_otherwise(
    path: Path, meaning: str
) -> None:
    # A section says in its own words what it is for.
    rule = re.compile(r"Set this (to \w+ )?when [^;]+; otherwise [^;]+\.")
    is_section = path in SECTIONS and path[:-1] in ((), ("access",), ("fronts",))
    assert is_section or rule.fullmatch(" ".join(meaning.split("\n\n")[-1].split()))


def test_the_page_and_the_schema_have_every_setting_and_no_other() -> None:
    known = {
        f"{section.__name__}.{key_of(name)}"
        for section in SECTIONS.values()
        for name in section.model_fields
    }
    schema = json_schema()
    sections = {section.__name__ for section in SECTIONS.values()}
    nodes = {"Settings": schema} | {
        name: node for name, node in schema["$defs"].items() if name in sections
    }
    assert {f"{name}.{key}" for name, node in nodes.items() for key in node["properties"]} == known
    rows = re.findall(r"^\| `(\w+)` \|", document(), re.MULTILINE)
    top = re.findall(r"^## `(\w+)`", document(), re.MULTILINE)
    assert sorted([*rows, *top]) == sorted(name.partition(".")[2] for name in known)


GIVEN = {"name", "http", "grpc", "metrics", "tls", "standby", "activate", "deactivate"}
"""Keys of backends that have no default in the full file."""


def test_the_full_file_holds_the_defaults() -> None:
    settings = read(FULL)
    least = Settings.model_validate(
        {
            "listen": settings.listen,
            "backends": [
                backend.model_dump(include=GIVEN, by_alias=True) for backend in settings.backends
            ],
            "discovery": {
                name: [getattr(settings.discovery, name)[0].model_dump(include={*_PORTS, key})]
                for name, key in (("dns", "host"), ("kubernetes", "service"))
            },
            "access": settings.access.model_dump(include={"tokens", "limits"}),
            "models": {
                name: own.model_dump(
                    include={"variants": True, "ramp": True, "rollback": True, "shadow": {"model"}},
                    by_alias=True,
                )
                for name, own in settings.models.items()
            },
        }
    )
    assert settings == least


def test_the_minimal_file_has_the_four_ports_of_triton_and_ours() -> None:
    listen = read(CONFIG / "minimal.yaml").listen
    addresses = [each.address for _, each in listen if isinstance(each, ListenerSettings)]
    assert [str(address) for address in addresses] == [
        f"127.0.0.1:{port}" for port in (8000, 8001, 8002, 8003)
    ]


def test_every_section_has_an_example() -> None:
    # tests/documentation reads them from the page.
    assert EXAMPLES.keys() == Settings.model_fields.keys()


def test_the_documentation_is_up_to_date() -> None:
    # When this fails: python -m lb.settings.document > docs/configuration.md
    assert (ROOT / "docs" / "configuration.md").read_text() == document()
