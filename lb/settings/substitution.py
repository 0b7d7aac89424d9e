"""`${NAME}`, `${NAME:-DEFAULT}` and `${file:PATH}` inside the strings of a configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from lb.settings.problems import Substituted

_REFERENCE: Final = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class Substitution:
    """Replaces references by values from the environment and from files.

    `$${` stands for a plain `${`. What is put in is not searched again. Of a file's text the one
    line end at its end is dropped, as secrets usually have one.
    """

    def __init__(self, env: Mapping[str, str], read_file: Callable[[str], str]) -> None:
        """Take the environment and the function that returns a file's text or raises OSError."""
        self._env = env
        self._read_file = read_file

    def apply(self, text: str) -> str:
        """Return the text with every reference replaced; `Substituted` if there is one.

        Raises:
            ValueError: with a message that says which reference has no value.
        """
        result = _REFERENCE.sub(self._replace, text)
        is_plain = all(match[1] is None for match in _REFERENCE.finditer(text))
        return result if is_plain else Substituted.of(result, text)

    def _replace(self, match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        reference = match[1]
        if reference is None:
            raise ValueError("'${' without '}'; write '$${' for a plain '${'")
        if reference.startswith("file:"):
            return self._from_file(reference.removeprefix("file:"))
        name, separator, default = reference.partition(":-")
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"expected ${{NAME}}, ${{NAME:-DEFAULT}} or ${{file:PATH}}, got '{match[0]}'"
            )
        value = self._env.get(name)
        # As in a shell, `:-` also replaces a variable that is set to nothing.
        if separator and not value:
            return default
        if value is None:
            raise ValueError(f"environment variable {name} is not set")
        return value

    def _from_file(self, path: str) -> str:
        try:
            text = self._read_file(path)
        except OSError as error:
            raise ValueError(f"cannot read {path}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"cannot read {path}: it is not UTF-8 text") from error
        return text.removesuffix("\n").removesuffix("\r")
