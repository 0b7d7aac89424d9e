"""Which keys a section has."""

from __future__ import annotations

import pytest

from lb.settings.backends import BackendSettings
from lb.settings.listening import ListenerSettings
from lb.settings.model import Settings
from lb.settings.problems import Path
from lb.settings.shape import keys_at, section_of


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
