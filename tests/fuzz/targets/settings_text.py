"""The text of a configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from lb.settings.problems import SettingsError
from lb.settings.reading import read_settings
from lb.settings.tree import parse_tree
from lb.settings.units import format_duration, format_size, parse_duration, parse_size
from tests.fuzz.target import Target

_CONFIG = Path(__file__).parents[3] / "config"


def _check(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    try:
        settings = read_settings(text, {"NAME": "value"}, _no_file)
        assert [backend.name for backend in settings.specs()]
    except SettingsError as error:
        assert error.problems
        assert all(problem.message for problem in error.problems)
        assert len(str(error)) < 400 * (1 + len(text))
    tree = parse_tree(text, str)
    if not tree.problems:
        _compare(tree.root, yaml.load(text, yaml.BaseLoader))  # builds no objects
    _check_units(text)


def _no_file(path: str) -> str:
    raise FileNotFoundError(2, "No such file or directory", path)


def _compare(ours: Any, theirs: Any) -> None:
    """The same mappings and lists, and the same words in them."""
    if isinstance(ours, dict):
        assert isinstance(theirs, dict)
        left_out = set(theirs) - set(ours)
        assert all(theirs[key] in ("", "~", "null", "Null", "NULL") for key in left_out)
        for key, value in ours.items():
            _compare(value, theirs[key])
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            _compare(mine, other)
    elif isinstance(ours, str):
        assert ours == theirs
    else:
        assert isinstance(theirs, str)


def _check_units(text: str) -> None:
    for parse, form in ((parse_duration, format_duration), (parse_size, format_size)):
        for word in text.split()[:5]:
            try:
                value = parse(word)
            except ValueError as error:
                assert len(str(error)) < 200
            else:
                assert parse(form(value)) == value  # type: ignore[operator]


_SEEDS = (
    (_CONFIG / "minimal.yaml").read_bytes(),
    (_CONFIG / "full.yaml").read_bytes(),
    b"listen: {http: 127.0.0.1:0}\nbackends: [{http: 'a:1'}]\n",
    b'listen:\n  http: "${NAME}:1"\nbackends:\n  - http: ${file:/x}\n',
    b"1s 100ms 2m 1.5h 250us",
    b"64KiB 1MiB 2GiB 512B 0",
)
_WORDS = (
    *b"& * ! | > ' \" % @ ` ? - : , [ ] { } # --- ... <<: !!str !!python/object: ~ null".split(),
    *b".inf 0x1 010 off 1:30 ${ ${NAME} ${file: $$ &a *a backends: listen: tls: 1s".split(),
    *b"64KiB 1e999 -1 \xe2\x80\xa8 \xc2\x85 \xef\xbb\xbf".split(),
    *(b"\n", b"\n  ", b"\t", b"\0", b"\r", b"\x7f"),
)

TARGETS = (Target("settings", _check, _SEEDS, _WORDS),)
