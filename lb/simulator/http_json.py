"""Messages as the JSON that Triton's HTTP side answers."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.message import Message

Json = bool | int | float | str | list["Json"] | dict[str, "Json"]


def dumps(value: Json) -> bytes:
    """Return compact JSON. Bytes that were no UTF-8 come out as they went in, as with Triton."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogateescape")


def as_json(message: Message) -> dict[str, Json]:
    """Return a message under the names of its .proto file, defaults spelled out.

    Fields that track presence (messages, members of a oneof) are left out when not set. Integers
    are numbers: protobuf's own JSON mapping makes strings of 64-bit ones, Triton does not.
    """
    fields: dict[str, Json] = {}
    for field in message.DESCRIPTOR.fields:
        if not field.has_presence or message.HasField(field.name):
            fields[field.name] = _field_json(field, getattr(message, field.name))
    return fields


# Descriptors and containers differ between protobuf's implementations, and so do their types.


def _field_json(field: Any, value: Any) -> Json:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name["value"]
        return {str(key): _single_json(entry, item) for key, item in value.items()}
    if isinstance(value, bool | int | float | str | bytes | Message):
        return _single_json(field, value)
    return [_single_json(field, item) for item in value]


def _single_json(field: Any, value: Any) -> Json:
    if field.message_type is not None:
        return as_json(value)
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    scalar: Json = value
    return scalar
