"""Which keys a section has, and what is said of them."""

from __future__ import annotations

import pytest

from lb.settings.backends import BackendSettings
from lb.settings.listening import ListenerSettings, RelayListenerSettings
from lb.settings.model import Settings
from lb.settings.problems import Path
from lb.settings.shape import keys_at, meanings, section_of


def test_sections_are_found_inside_optional_and_repeated_fields() -> None:
    backends = Settings.model_fields["backends"].annotation
    assert section_of(backends) is BackendSettings
    assert section_of(ListenerSettings | None) is ListenerSettings
    assert section_of(tuple[int, ...]) is None


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ((), "listen"),
        (("listen",), "grpc"),
        (("listen", "http"), "address"),
        (("backends", 3), "weight"),
        (("backends", 3, "health"), "rise"),
    ],
)
def test_keys_are_those_of_the_section_at_the_path(path: Path, key: str) -> None:
    assert key in keys_at(path)


@pytest.mark.parametrize(
    "path", [("nothing",), ("forwarded",), ("forwarded", "x"), ("models", "a")]
)
def test_what_is_no_section_has_no_keys_of_its_own(path: Path) -> None:
    assert not {"address", "weight", "rise"} & set(keys_at(path))


def test_there_is_one_for_every_field() -> None:
    for section in (Settings, BackendSettings, RelayListenerSettings):
        assert meanings(section).keys() == section.model_fields.keys()


def test_each_text_belongs_to_the_field_before_it() -> None:
    found = meanings(BackendSettings)
    assert found["weight"].startswith("Share of the load")
    assert found["max_requests"] != found["weight"]
    assert not any(text.startswith('"') or text != text.strip() for text in found.values())


def test_texts_are_inherited() -> None:
    inherited = meanings(ListenerSettings)
    assert inherited
    assert meanings(RelayListenerSettings).items() >= inherited.items()
