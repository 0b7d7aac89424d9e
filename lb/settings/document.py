"""Writes `docs/configuration.md` from the models: `python -m lb.settings.document > FILE`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from lb.settings.kubernetes import read_port
from lb.settings.model import Settings
from lb.settings.problems import shown
from lb.settings.scheduling import read_concurrency
from lb.settings.section import Section
from lb.settings.shape import meanings, section_of
from lb.settings.units import format_duration, format_size, parse_duration, parse_size
from lb.settings.values import (
    address_as_mapping,
    read_address,
    read_network,
    read_proxy,
    read_switch,
    read_target,
)

_INTRODUCTION: Final = """\
# Configuration

<!-- Made by `python -m lb.settings.document`; change the models in lb/settings. -->

`triton-lb serve --config FILE` reads one YAML file; `triton-lb check FILE` prints every problem
of it with path and line, and warns of two backends at the same address. `config/minimal.yaml` is
enough for most, `config/full.yaml` holds every setting with its default. Editors with the YAML
language server complete and check a file whose first line is
`# yaml-language-server: $schema=triton-lb.schema.json`; `triton-lb schema` prints that schema.

- **Unknown keys** are refused, so are keys given twice, YAML aliases and tags.
- **A key without a value** is as good as left out.
- **Words** such as `off` and `yes` are words, not booleans; booleans are `true` and `false`.
- **Durations** are a number and `h`, `m`, `s`, `ms` or `us`: `1s`, `100ms`, `1.5h`. A number
  alone is seconds.
- **Sizes** are a whole number and `KiB`, `MiB`, `GiB` or `B`. A number alone is bytes.
- **Addresses** are `HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`.
- **In any string** `${NAME}` stands for an environment variable, `${NAME:-DEFAULT}` for one that
  may be missing or empty, `${file:PATH}` for the text of a file without its last line end (a
  relative path starts at the working directory), and `$${` for a plain `${`.

Without a file, `triton-lb serve --backend HOST:PORT`, once or more, balances over Tritons with
gRPC at the next port and metrics at the one after, and listens on 127.0.0.1 at 8000 (HTTP), 8001
(gRPC), 8002 (metrics) and 8003 (admin). `--http`, `--grpc`, `--metrics` and `--admin` change these
addresses, and those of a file.
"""

_BY_READER: Final[dict[Callable[..., object], str]] = {
    parse_duration: "duration",
    parse_size: "size",
    read_address: "address",
    read_target: "address",
    read_network: "network",
    read_proxy: "network or unix",
    read_switch: "true, false or auto",
    read_concurrency: "auto, adaptive, off or a number",
    read_port: "name or number of a port",
    address_as_mapping: "address, or mapping as below",
}
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
    parts = [_INTRODUCTION]
    texts = meanings(Settings)
    for name, field in Settings.model_fields.items():
        section = section_of(field.annotation)
        parts.append(f"\n## `{name}`\n\n")
        if texts[name]:
            parts.append(f"{_one_line(texts[name])}\n\n")
        if section is None:
            parts.append(f"Value: {_value(field)}. Default: {_default(field)}.\n")
        else:
            parts += _section(section)
    return "".join(parts)


def _section(section: type[Section]) -> Iterator[str]:
    if not section.model_fields:
        return
    yield f"{_one_line(inspect.getdoc(section) or '')}\n\n"
    yield "| key | value | default | meaning |\n|---|---|---|---|\n"
    texts = meanings(section)
    for name, field in section.model_fields.items():
        meaning = _one_line(texts[name])
        yield f"| `{name}` | {_value(field)} | {_default(field)} | {meaning} |\n"
    held = (section_of(field.annotation) for field in section.model_fields.values())
    for inner in dict.fromkeys(held):
        if inner is not None and inner not in _TOP:
            yield "\n"
            yield from _section(inner)


def _one_line(text: str) -> str:
    # A bar would end the cell of a table.
    return " ".join(text.split()).replace("|", "\\|")


def _value(field: FieldInfo) -> str:
    """Say what may be given: `duration, above 0s`."""
    kind = _kind(field)
    bounds = [
        f"{word} {_shown(_written(bound, kind))}"
        for name, word in _BOUNDS
        for item in field.metadata
        if (bound := getattr(item, name, None)) is not None and (bound, name) != (0, "ge")
    ]
    return ", ".join([kind, *dict.fromkeys(bounds)])


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
