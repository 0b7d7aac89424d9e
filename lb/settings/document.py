"""Writes `docs/configuration.md` from the models: `python -m lb.settings.document > FILE`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from lb.settings.examples import EXAMPLES
from lb.settings.kubernetes import read_port
from lb.settings.model import Settings
from lb.settings.problems import shown
from lb.settings.scheduling import read_concurrency
from lb.settings.section import Section, key_of
from lb.settings.shape import meanings, section_of
from lb.settings.units import format_duration, format_size, parse_duration, parse_size
from lb.settings.values import (
    address_as_mapping,
    read_address,
    read_network,
    read_proxy,
    read_switch,
    read_target,
    read_workers,
)

_INTRODUCTION: Final = """\
# Configuration

<!-- Made by `python -m lb.settings.document`; change the models in lb/settings. -->

One YAML file configures triton-lb. `triton-lb check FILE` prints up to 100 problems with path and
line.

- [Basic settings](#basic-settings)
- [How values are written](#how-values-are-written)
"""

_BASIC: Final = """
## Basic settings

`listen` and `backends` are enough for most. `config/minimal.yaml` and `config/six.yaml` hold
nothing else; `config/full.yaml` holds every setting with its default.

```yaml
listen:
  http: 0.0.0.0:8000
  grpc: 0.0.0.0:8001
  metrics: 0.0.0.0:8002
  admin: 127.0.0.1:8003
backends:
  - {name: gpu-0, http: 127.0.0.1:18000, grpc: 127.0.0.1:18001, metrics: 127.0.0.1:18002}
  - {name: gpu-1, http: 127.0.0.1:18100, grpc: 127.0.0.1:18101, metrics: 127.0.0.1:18102}
```

| you want | set |
|---|---|
| Tritons that come and go | [`discovery`](#discovery) |
| TLS | `listen.https`, `listen.grpcs`, `backends[].tls` ([TLS](tls.md)) |
| tokens, limits per client, remote model loading | [`access`](#access) ([Access](access.md)) |
| deadlines, priorities, shares | [`scheduling`](#scheduling) ([Scheduling](scheduling.md)) |
| a bound on the time of a request | `timeouts.request` |
| a load balancer in front | `listen.trusted_proxies`, `shutdown.pre_stop_delay: 5s` |
| JSON logs, a log line per request | `log.format: json`, `access_log.mode: all` |

Without a file, `triton-lb serve --backend HOST:PORT` balances over Tritons; repeat `--backend`
for more. gRPC is then at the next port and metrics at the one after. It listens on 127.0.0.1 at
8000 (HTTP), 8001 (gRPC), 8002 (metrics) and 8003 (admin). `--http`, `--grpc`, `--metrics` and
`--admin` change these addresses, and those of a file.

## How values are written

- **Unknown keys** are refused. So are repeated keys, YAML aliases and tags.
- **A key without a value** counts as left out.
- **Booleans** are `true` and `false`. `off` and `yes` are words.
- **Durations** are a number and `h`, `m`, `s`, `ms` or `us`: `1s`, `100ms`, `1.5h`. The unit of a
  bare number is seconds.
- **Sizes** are a whole number and `KiB`, `MiB`, `GiB` or `B`. The unit of a bare number is bytes.
- **Addresses** are `HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`.
- **Environment**: in any string `${NAME}` stands for an environment variable. `${NAME:-DEFAULT}`
  has a default for one that is missing or empty. `$${` stands for a plain `${`.
- **Files**: `${file:PATH}` stands for the text of a file without its last line end. A relative
  path starts at the working directory. Files of `discovery` and the admin API have neither.
- **Editors** with the YAML language server complete a file whose first line is `#
  yaml-language-server: $schema=triton-lb.schema.json`. `triton-lb schema` prints that schema.
"""

_GROUPS: Final = {
    "Addresses": ("listen", "backends", "discovery", "fronts"),
    "Placement": ("balancing", "scheduling", "sequences", "models", "placement"),
    "Health": ("health", "outlier_detection", "slow_start", "warm_up", "model_table"),
    "Failures": ("retry", "hedging", "timeouts"),
    "Limits and access": ("limits", "access", "admin", "forwarded", "cancellation"),
    "Operation": ("workers", "fan_out", "shutdown", "reload", "standby", "state"),
    "Logs and metrics": ("log", "access_log", "payload_log", "metrics", "tracing"),
}
"""The sections of the page in their order; those of no group follow."""

_BY_READER: Final[dict[Callable[..., object], str]] = {
    parse_duration: "duration",
    parse_size: "size",
    read_address: "address",
    read_target: "address",
    read_network: "network",
    read_proxy: "network or unix",
    read_switch: "true, false or auto",
    read_concurrency: "auto, adaptive, off or a number",
    read_workers: "auto or a number",
    read_port: "name or number of a port",
    address_as_mapping: "address, or mapping as below",
}
_WITH_UNIT: Final = {"duration": "duration (seconds)", "size": "size (bytes)"}
_MANY: Final = {
    "address": "addresses",
    "network": "networks",
    "network or unix": "networks or unix",
}
_BY_TYPE: Final[dict[object, str]] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    SecretStr: "text",
    dict: "mapping",
    tuple: "list",
}
_TOP: Final = {section_of(field.annotation) for field in Settings.model_fields.values()}
_BOUNDS: Final = (("gt", "above"), ("ge", "at least"), ("le", "at most"))


def document() -> str:
    """Return the whole page as Markdown."""
    rest = set(Settings.model_fields).difference(*_GROUPS.values())
    groups = {**_GROUPS, "More": tuple(name for name in Settings.model_fields if name in rest)}
    links = (
        f"- {group}: {', '.join(f'[`{name}`](#{name})' for name in names)}\n"
        for group, names in groups.items()
        if names
    )
    sections = (line for names in groups.values() for name in names for line in _top_section(name))
    return "".join((_INTRODUCTION, *links, _BASIC, *sections))


def _top_section(name: str) -> Iterator[str]:
    field, text = Settings.model_fields[name], meanings(Settings)[name]
    section = section_of(field.annotation)
    yield f"\n## `{name}`\n\n"
    if text:
        meaning, when = _split(text)
        yield f"{meaning}\n\nSet this {when}\n\n"
    if section is None:
        yield f"Value: {_value(field)}. Default: {_default(field)}.\n"
    elif section.model_fields:
        yield f"{_one_line(inspect.getdoc(section) or '')}\n"
    yield f"\n```yaml\n{EXAMPLES[name]}```\n"
    if section is not None:
        yield from _table(section)
        yield from _inner(section, name + _many(field))


def _inner(section: type[Section], path: str) -> Iterator[str]:
    """Describe the sections that a section holds, each once, below the keys that hold it."""
    places: dict[type[Section], list[str]] = {}
    for name, field in section.model_fields.items():
        inner = section_of(field.annotation)
        if inner is not None and inner not in _TOP:
            places.setdefault(inner, []).append(f"{path}.{name}{_many(field)}")
    for inner, keys in places.items():
        yield f"\n### {', '.join(f'`{key}`' for key in keys)}\n\n"
        yield f"{_one_line(inspect.getdoc(inner) or '')}\n"
        yield from _table(inner)
        yield from _inner(inner, keys[0])


def _table(section: type[Section]) -> Iterator[str]:
    if not section.model_fields:
        return
    yield "\n| key | type | default | meaning | set this |\n|---|---|---|---|---|\n"
    texts = meanings(section)
    for name, field in section.model_fields.items():
        meaning, when = _split(texts[name])
        yield f"| `{key_of(name)}` | {_value(field)} | {_default(field)} | {meaning} | {when} |\n"


def _split(text: str) -> tuple[str, str]:
    """Separate what a setting is from when to set it."""
    meaning, _, when = _one_line(text).rpartition("Set this ")
    return meaning.strip(), when


def _many(field: FieldInfo) -> str:
    """What follows the key of a list or of a mapping in the path of its members."""
    kinds = {get_origin(part) for part in (field.annotation, *_parts(field.annotation))}
    return "[]" if tuple in kinds else ".NAME" if dict in kinds else ""


def _one_line(text: str) -> str:
    # A bar would end the cell of a table.
    return " ".join(text.split()).replace("|", "\\|")


def _value(field: FieldInfo) -> str:
    """Say what may be given: `duration, above 0s`."""
    kind = _kind(field)
    bounds = [
        f"{word} {_shown(_written(bound, kind))}"
        for name, word in _BOUNDS
        for item in _constraints(field)
        if (bound := getattr(item, name, None)) is not None and (bound, name) != (0, "ge")
    ]
    if bounds and kind.startswith(("list", "mapping")):
        bounds[0] = f"each {bounds[0]}"
    return ", ".join([_WITH_UNIT.get(kind, kind), *dict.fromkeys(bounds)])


def _constraints(field: FieldInfo) -> Iterator[object]:
    """All that an annotated type or an optional one says of its values."""
    for item in (*field.metadata, *_parts(field.annotation)):
        yield from item.metadata if isinstance(item, FieldInfo) else (item,)


def _kind(field: FieldInfo) -> str:
    annotation = field.annotation
    for item in (*field.metadata, *_parts(annotation)):
        if (reader := getattr(item, "func", None)) in _BY_READER:
            word = _BY_READER[reader]
            return f"list of {_MANY[word]}" if get_origin(annotation) is tuple else word
    if section_of(annotation) is not None:
        is_list = any(get_origin(item) is tuple for item in (annotation, *_parts(annotation)))
        return "list of mappings" if is_list else "mapping"
    for item in (annotation, *_parts(annotation)):
        if isinstance(item, type) and issubclass(item, Enum):
            return ", ".join(f"`{member.value}`" for member in item)
        if (get_origin(item) or item) in _BY_TYPE:
            return _BY_TYPE[get_origin(item) or item]
    raise LookupError(f"no words for the type {annotation}")


def _parts(annotation: object) -> Iterator[object]:
    """Yield what a union or an annotated type is made of, at any depth."""
    for part in get_args(annotation):
        yield part
        yield from _parts(part)


def written(value: object, field: FieldInfo) -> object:
    """Return the value of a setting as it would stand in a file; a section is empty."""
    return _written(value, _kind(field))


def default_of(field: FieldInfo) -> object:
    """Return the default of a setting as it would stand in a file; None if there is none."""
    return written(field.get_default(call_default_factory=True), field)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = default_of(field)
    return "none" if default is None else f"`{_shown(default)}`"


def _written(value: object, kind: str) -> object:
    """A value as it would stand in a file."""
    if isinstance(value, float) and kind == "duration":
        return format_duration(value)
    if isinstance(value, int) and kind == "size":
        size = format_size(value)
        return value if size.isdecimal() else size
    if isinstance(value, Section):
        return {}
    if isinstance(value, tuple):
        return [_written(item, kind) for item in value]
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (bool, int, float, dict)):
        return value
    return shown(value) if isinstance(value, str) else str(value)


def _shown(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.stdout.write(document())
