"""What differs between two configurations: for the log, and for whoever asked for a reload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lb.settings.backends import BackendSettings
from lb.settings.model import Settings
from lb.settings.section import Section, key_of


def changed_keys(old: Settings, new: Settings) -> tuple[str, ...]:
    """The settings whose values differ, as paths: `limits.head_bytes`, `backends[gpu-0].weight`.

    Backends go by their names, as `backends[gpu-0]` where one was added or removed; where only
    their order differs that is `backends`. Values that were written in other words, or were left
    to their default, are equal.
    """
    return tuple(_in_section("", old, new))


def _in_section(path: str, old: Section, new: Section) -> Iterator[str]:
    for name in type(old).model_fields:
        where = f"{path}.{key_of(name)}" if path else name
        yield from _in_value(where, getattr(old, name), getattr(new, name))


def _in_value(path: str, old: object, new: object) -> Iterator[str]:
    if old == new:
        return
    if isinstance(old, Section) and type(old) is type(new):
        assert isinstance(new, Section)
        yield from _in_section(path, old, new)
    elif isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from _in_mapping(path, old, new)
    elif _are_backends(old) and _are_backends(new):
        yield from _in_backends(path, old, new)  # type: ignore[arg-type]  # as just checked
    else:
        yield path


def _in_mapping(path: str, old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[str]:
    for key in dict.fromkeys((*old, *new)):
        if key in old and key in new:
            yield from _in_value(f"{path}[{key}]", old[key], new[key])
        else:
            yield f"{path}[{key}]"


def _are_backends(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, BackendSettings) for each in value)


def _in_backends(
    path: str, old: Sequence[BackendSettings], new: Sequence[BackendSettings]
) -> Iterator[str]:
    before = {each.spec().name: each for each in old}
    after = {each.spec().name: each for each in new}
    found = list(_in_mapping(path, before, after))
    yield from found or [path]
