"""The texts behind the fields of a section are found without pydantic's help."""

from __future__ import annotations

from lb.settings.backends import BackendSettings
from lb.settings.listening import ListenerSettings, RelayListenerSettings
from lb.settings.meanings import meanings
from lb.settings.model import Settings


def test_there_is_one_for_every_field() -> None:
    for section in (Settings, BackendSettings, RelayListenerSettings):
        assert meanings(section).keys() == section.model_fields.keys()


def test_each_text_belongs_to_the_field_before_it() -> None:
    found = meanings(BackendSettings)
    assert found["weight"].startswith("Share of the load")
    assert found["max_in_flight"] != found["weight"]
    assert not any(text.startswith('"') or text != text.strip() for text in found.values())


def test_texts_are_inherited() -> None:
    inherited = meanings(ListenerSettings)
    assert inherited
    assert meanings(RelayListenerSettings).items() >= inherited.items()
