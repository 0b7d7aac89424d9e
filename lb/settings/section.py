"""Base of every section of the settings: what can be read, and rules between its values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    JsonValue,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from lb.settings.problems import MAX_PROBLEMS, Finding

RULE: Final = "rule"
"""Type of the error for a broken rule; its context has the message."""
LENIENT: Final = "lenient"
"""Context of a validation that leaves out what cannot be read and applies no rules."""


def one_needed(*keys: str) -> ConfigDict:
    """Say in the JSON schema of a section that at least one of some keys is needed."""
    return ConfigDict(json_schema_extra={"anyOf": [{"required": [key]} for key in keys]})


def all_or_none(*keys: str) -> ConfigDict:
    """Say in the JSON schema of a section that each of some keys needs the others."""
    others: dict[str, JsonValue] = {key: [other for other in keys if other != key] for key in keys}
    return ConfigDict(json_schema_extra={"dependencies": others})


def key_of(name: str) -> str:
    """Return the key of a field in a file, by the field's name. A word of Python has an underscore
    behind it."""
    return name.removesuffix("_")


class Section(BaseModel):
    """Base of all sections: frozen, and without unknown keys."""

    model_config = ConfigDict(
        alias_generator=key_of,
        extra="forbid",
        frozen=True,
        # Before 2.10 pydantic keeps names that begin with `model_` to itself.
        protected_namespaces=(),
    )

    _unreadable: frozenset[int | str] = PrivateAttr(default=frozenset())

    @property
    def unreadable(self) -> frozenset[int | str]:
        """Keys that were given and left out, since their values cannot be read."""
        return self._unreadable

    def broken_rules(self) -> Iterable[Finding]:
        """Return what is wrong between values of this section, with paths that begin here."""
        return ()

    @model_validator(mode="wrap")
    @classmethod
    def _check(
        cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        """Report broken rules together with unreadable values, as far as the rest can be read."""
        data = _without_surplus(cls, data)
        try:
            section, errors = handler(data), []
        except ValidationError as error:
            every = error.errors(include_url=False)
            errors = every[: MAX_PROBLEMS + 1]  # a list may hold ten thousands
            rest = _readable(data, handler, every)
            if rest is None:
                raise _error(cls, errors, ()) from None
            section = rest
        if info.context == LENIENT:
            return section
        findings = list(_of_readable(section))
        if errors or findings:
            raise _error(cls, errors, findings)
        return section


def _without_surplus(section: type[Section], data: object) -> object:
    """What a section is made from, without unknown keys beyond those that are told."""
    fields = section.model_fields
    if not isinstance(data, Mapping) or len(data) <= len(fields) + MAX_PROBLEMS:
        return data
    known = set(map(key_of, fields))
    unknown = islice((key for key in data if key not in known), MAX_PROBLEMS + 1)
    return {key: data[key] for key in (*known.intersection(data), *unknown)}


_Some = TypeVar("_Some", bound=Section)


def _readable(
    data: object, handler: ModelWrapValidatorHandler[_Some], errors: Iterable[ErrorDetails]
) -> _Some | None:
    """A section without what cannot be read; None if that is required, or all of it."""
    unreadable = frozenset(each["loc"][0] for each in errors if each["loc"])
    if not isinstance(data, Mapping) or not unreadable:
        return None
    try:
        section = handler({key: value for key, value in data.items() if key not in unreadable})
    except ValidationError:
        return None
    section._unreadable = unreadable
    return section


def _of_readable(section: Section) -> Iterable[Finding]:
    """Broken rules, except for those that concern what could not be read."""
    for path, message in section.broken_rules():
        if not section.unreadable or (path and path[0] not in section.unreadable):
            yield path, message


def _error(
    section: type[Section], errors: Iterable[ErrorDetails], findings: Iterable[Finding]
) -> ValidationError:
    lines = [
        InitErrorDetails(
            type=_type(each), loc=each["loc"], input=each["input"], ctx=each.get("ctx", {})
        )
        for each in errors
    ]
    for path, message in findings:
        rule = PydanticCustomError(RULE, "{message}", {"message": message})
        lines.append(InitErrorDetails(type=rule, loc=path, input=None))
    return ValidationError.from_exception_data(section.__name__, lines)


def _type(error: ErrorDetails) -> str | PydanticCustomError:
    if error["type"] != RULE:
        return error["type"]
    return PydanticCustomError(RULE, "{message}", error["ctx"])
