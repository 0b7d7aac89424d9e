"""The whole model: what a backend inherits, and that nothing is lost in a dump."""

from __future__ import annotations

from typing import Any

from lb.settings.model import Settings


def make(**sections: Any) -> Settings:
    return Settings.model_validate(
        {"listen": {"http": "127.0.0.1:0"}, "backends": [{"http": "gpu-0:8000"}], **sections}
    )


def test_a_backends_own_health_settings_replace_single_common_ones() -> None:
    settings = make(
        health={"interval": "5s", "fall": 4},
        backends=[{"http": "a:1", "health": {"fall": 9, "http_path": "/ok"}}, {"http": "b:1"}],
    )
    own, common = (settings.health_of(backend) for backend in settings.backends)
    assert (own.interval, own.fall, own.http_path) == (5.0, 9, "/ok")
    assert common == settings.health


def test_what_is_dumped_reads_back_unchanged() -> None:
    settings = make(listen={"http": "unix:/run/a"}, backends=[{"grpc": "[::1]:1"}])
    assert settings.model_dump()["backends"][0]["grpc"] == "[::1]:1"
    assert Settings.model_validate(settings.model_dump(by_alias=True)) == settings
    assert Settings.model_validate_json(settings.model_dump_json(by_alias=True)) == settings
