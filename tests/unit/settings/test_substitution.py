"""References in strings: what they stand for, and what is said when they stand for nothing."""

from __future__ import annotations

import pytest

from lb.settings.substitution import Substitution

FILES = {"/run/token": "secret\n", "/run/windows": "a\r\n", "/run/lines": "a\nb\n\n"}


def read_file(path: str) -> str:
    if path == "/run/binary":
        return b"\xff".decode()
    if path not in FILES:
        raise FileNotFoundError(2, "No such file or directory", path)
    return FILES[path]


SUBSTITUTION = Substitution({"HOST": "gpu-0", "EMPTY": "", "NESTED": "${HOST}"}, read_file)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("plain $HOST { } $", "plain $HOST { } $"),
        ("${HOST}", "gpu-0"),
        ("${HOST}:${PORT:-8000}", "gpu-0:8000"),
        ("${HOST:-other}", "gpu-0"),
        ("${EMPTY}", ""),
        ("${EMPTY:-full}", "full"),
        ("${NONE:-}", ""),
        ("${NONE:-a:-b}", "a:-b"),
        ("${NESTED}", "${HOST}"),
        ("$${HOST}", "${HOST}"),
        ("Bearer ${file:/run/token}", "Bearer secret"),
        ("${file:/run/windows}", "a"),
        ("${file:/run/lines}", "a\nb\n"),
    ],
)
def test_references_are_replaced(text: str, result: str) -> None:
    assert SUBSTITUTION.apply(text) == result


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${NONE}", "environment variable NONE is not set"),
        ("${", "'${' without '}'; write '$${' for a plain '${'"),
        ("a ${HOST", "'${' without '}'; write '$${' for a plain '${'"),
        ("${}", "expected ${NAME}, ${NAME:-DEFAULT} or ${file:PATH}, got '${}'"),
        ("${A-B}", "expected ${NAME}, ${NAME:-DEFAULT} or ${file:PATH}, got '${A-B}'"),
        ("${file:/none}", "cannot read /none: No such file or directory"),
        ("${file:/run/binary}", "cannot read /run/binary: it is not UTF-8 text"),
    ],
)
def test_a_reference_without_value_says_so(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        SUBSTITUTION.apply(text)
    assert str(caught.value) == message
