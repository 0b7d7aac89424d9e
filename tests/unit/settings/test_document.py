"""The page made from the models: types, bounds and defaults as operators write them."""

from __future__ import annotations

import pytest

from lb.settings.document import document

LINES = document().splitlines()


@pytest.mark.parametrize(
    "start",
    [
        "| `http` | address, or mapping as below | none | HTTP/1.1 for clients",
        "| `tls` | mapping | none | TLS for this listener.",
        "| `certificates` | list of mappings | required | ",
        "| `ports` | list | `[http, grpc, metrics]` | ",
        "| `kind` | `triton`, `kserve`, `tfserving`, `generic` | `triton` | ",
        "| `weight` | number, above 0, at most 1e+06 | `1` | ",
        "| `headers` | mapping | `{}` | Headers for probes",
        "| `interval` | duration (seconds), above 0 | `1s` | ",
        "| `expected_status` | list, each at least 200, at most 599 | `[200]` | ",
        "| `http_path` | text | none | ",
        "| `head_bytes` | size (bytes), at least 1KiB, at most 16MiB | `32KiB` | ",
        "| `attempts` | whole number, at least 1, at most 100 | `3` | ",
        "| `backends` | true or false | `true` | ",
        "Value: `off`, `x_forwarded`, `forwarded`, `both`. Default: `off`.",
    ],
)
def test_a_setting_is_described_by_value_default_and_meaning(start: str) -> None:
    assert sum(line.startswith(start) for line in LINES) == 1


def test_shared_sections_are_described_once() -> None:
    assert sum(line.startswith("| `rise` |") for line in LINES) == 1
    # Listeners for requests have more than the others, and each front has its own.
    assert sum(line.startswith("| `address` |") for line in LINES) == 4
    assert sum(line.startswith("| `client_ca` |") for line in LINES) == 1
