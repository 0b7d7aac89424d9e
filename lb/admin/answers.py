"""Answers of the admin API: JSON text that is made from the models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Final, NewType

from aiohttp import web
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from lb.admin.models import Error

JsonText = NewType("JsonText", str)
"""JSON that is complete."""

_STEP_CHARACTERS: Final = 8192
"""JSON text that is made in one iteration of the event loop: about half a millisecond."""


class Refused(Exception):
    """A request is not carried out.

    Args:
        status: of the HTTP response.
        answer: the body: an `Error`, or a model with more to say.
    """

    def __init__(self, status: int, answer: Error) -> None:
        self.status = status
        self.answer = answer
        super().__init__(answer.error)


def refused(status: int, message: str) -> Refused:
    """Make the exception for a refusal that takes one sentence."""
    return Refused(status, Error(error=message))


def to_json(model: BaseModel) -> JsonText:
    """Return a model as JSON text."""
    try:
        return JsonText(model.model_dump_json())
    except PydanticSerializationError:
        # A backend may put half of a surrogate pair into its JSON, which UTF-8 cannot hold.
        return JsonText(json.dumps(model.model_dump(), separators=(",", ":")))


async def json_in_steps(shell: BaseModel, field: str, items: Iterable[BaseModel]) -> JsonText:
    """Return a model with a long array as JSON text, made over several iterations of the event
    loop.

    Args:
        shell: the model, with an empty array.
        field: the name of the array, which no field before it may have.
        items: the contents of the array; each is made when it is asked for.
    """
    # Quotes inside of texts are escaped, so this is found nowhere else.
    head, key, tail = to_json(shell).partition(f'"{field}":')
    texts = []
    left = _STEP_CHARACTERS
    for item in items:
        text = to_json(item)
        texts.append(text)
        left -= len(text)
        if left <= 0:
            left = _STEP_CHARACTERS
            await asyncio.sleep(0)
    return JsonText(f"{head}{key}[{','.join(texts)}]{tail.removeprefix('[]')}")


def response(
    answer: BaseModel | JsonText, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Make the HTTP response with a model, or with JSON text, as its body."""
    text = to_json(answer) if isinstance(answer, BaseModel) else answer
    return web.Response(text=text, status=status, headers=headers, content_type="application/json")


def error_response(
    status: int, message: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Make the response for an error that takes one sentence."""
    return response(Error(error=message), status, headers)
