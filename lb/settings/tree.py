"""YAML text to a plain tree of mappings, lists and scalars, with the line of every value.

The tree is built from YAML's nodes, not by a YAML constructor, because operators need paths and
lines, and because YAML 1.1 surprises: here `off` is a word and not false, `1:30` is not ninety,
`010` is ten. Scalars follow YAML 1.2's core schema (section 10.3.2) without octal, hexadecimal,
infinity and NaN. Refused: a key given twice, aliases (ten lines of them fill any memory), tags.
A key without a value is as good as left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

import yaml

from lb.settings.problems import (
    MAX_PROBLEMS,
    MORE_PROBLEMS,
    Finding,
    Path,
    Problem,
    format_path,
)
from lb.settings.redaction import redact

MAX_CHARACTERS: Final = 1 << 20
"""Longest text: a thousand backends take a tenth of it, and parsing YAML is slow."""
MAX_VALUES: Final = 50_000
"""Most values and keys of a text. A thousand backends with 24 settings each have as many, and take
about a second and 30 MB to read."""

_NULL: Final = "tag:yaml.org,2002:null"
_BOOL: Final = "tag:yaml.org,2002:bool"
_INT: Final = "tag:yaml.org,2002:int"
_FLOAT: Final = "tag:yaml.org,2002:float"
_STR: Final = "tag:yaml.org,2002:str"
_MAP: Final = "tag:yaml.org,2002:map"
_SEQ: Final = "tag:yaml.org,2002:seq"


class _TooManyValues(yaml.MarkedYAMLError):
    """The text has more values and keys than are read."""


class _Loader(yaml.BaseLoader):
    """Composes nodes without aliases, and only so many. The base resolves no scalars; the schema is
    added below."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            # The stubs leave this one method without types.
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are not supported", problem_mark=mark)
        self._nodes += 1
        if self._nodes > MAX_VALUES:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise _TooManyValues(problem_mark=mark)
        return super().compose_node(parent, index)


for _tag, _pattern, _first in (
    (_NULL, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (_BOOL, r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    (_INT, r"[-+]?[0-9]{1,18}", list("-+0123456789")),
    (_FLOAT, r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), _first)


class Tree:
    """The plain values of a text, where they stand, and what was wrong with the text itself."""

    __slots__ = ("lines", "problems", "root")

    def __init__(self) -> None:
        self.root: dict[str, object] = {}
        self.lines: dict[Path, int] = {}
        """Line of every value, from 1."""
        self.problems: list[Problem] = []

    def line_of(self, path: Path) -> int:
        """Return the line of a value or of what would hold it; 0 when there is none."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)

    def problem(self, path: Path, message: str) -> Problem:
        """A problem of the value at a path; its message shows nothing that was substituted."""
        where = format_path(path)
        return Problem(where, redact(message, self.root, path), self.line_of(path))

    def problems_with(self, findings: Iterable[Finding]) -> list[Problem]:
        """Problems of the text and of its values, one per path, in the order of the file.

        Args:
            findings: of the values; no more are taken than are told.
        """
        found = {problem.path: problem for problem in reversed(self.problems)}
        some = list(islice(findings, MAX_PROBLEMS + 1))
        for path, message in some:
            found.setdefault(format_path(path), self.problem(path, message))
        problems = sorted(found.values(), key=lambda problem: problem.line)
        if len(problems) > MAX_PROBLEMS or len(some) > MAX_PROBLEMS:
            return [*problems[:MAX_PROBLEMS], MORE_PROBLEMS]
        return problems


def parse_tree(text: str, substitute: Callable[[str], str], list_key: str = "") -> Tree:
    """Parse YAML; `substitute` is applied to every string and raises ValueError with a message.

    With a `list_key` a list alone stands for a mapping that has it under that key.

    Never raises: problems are collected in the tree, which then holds what could be read.
    """
    tree = Tree()
    node = _compose(text, tree.problems)
    if node is None:
        return tree
    if list_key:
        return _list_tree(tree, node, substitute, list_key)
    if not isinstance(node, yaml.MappingNode):
        tree.problems.append(Problem("", "expected a mapping with listen and backends", 1))
        return tree
    tree.root = _Builder(tree, substitute).mapping(node, ())
    return tree


def _list_tree(
    tree: Tree, node: yaml.Node, substitute: Callable[[str], str], list_key: str
) -> Tree:
    builder = _Builder(tree, substitute)
    if isinstance(node, yaml.MappingNode):
        tree.root = builder.mapping(node, ())
    elif isinstance(node, yaml.SequenceNode):
        tree.root = {list_key: builder.sequence(node, (list_key,))}
    else:
        tree.problems.append(Problem("", f"expected a list, or a mapping with {list_key}", 1))
    return tree


def _compose(text: str, problems: list[Problem]) -> yaml.Node | None:
    """Return the text's one document; None when there is none, with the reason in `problems`."""
    if len(text) > MAX_CHARACTERS:
        problems.append(Problem("", f"the text has more than {MAX_CHARACTERS} characters"))
        return None
    try:
        node = _Loader(text).get_single_node()
    except _TooManyValues as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        message = f"the text has more than {MAX_VALUES} values and keys"
        problems.append(Problem("", message, line))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        message = f"not valid YAML: {_yaml_problem(error)}"
        problems.append(Problem("", message, mark.line + 1 if mark else 0))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problems.append(Problem("", f"not valid YAML: {error.reason}", line))
    except RecursionError:
        # PyYAML composes by recursion, so only the depth of its own stack stops it.
        problems.append(Problem("", "not valid YAML: nested too deeply"))
    else:
        if node is None:
            problems.append(Problem("", "the file is empty"))
        return node
    return None


_YAML_PROBLEMS: Final = {
    "expected <block end>, but found": "the indentation does not fit the lines above",
    "found character '\\t'": "a tab; indent with spaces",
}
"""What people need to know instead of some messages, by how these begin."""


def _yaml_problem(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or error.context or "cannot be read"
    for theirs, ours in _YAML_PROBLEMS.items():
        if problem.startswith(theirs):
            return ours
    # Some problems end the sentence that their context begins.
    return f"{error.context}, {problem}" if problem.startswith("but ") else problem


_SCALARS: Final[dict[str, Callable[[str], object]]] = {
    _NULL: lambda _text: None,
    _BOOL: lambda text: text.lower() == "true",
    _INT: int,
    _FLOAT: float,
    _STR: str,
}


def _text(node: yaml.ScalarNode) -> str:
    """The text of a scalar. JSON escapes a character beyond U+FFFF as two surrogates (RFC 8259,
    section 7), which PyYAML leaves apart.

    Raises:
        ValueError: one surrogate stands alone.
    """
    text: str = node.value
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        found = text.encode("utf-16-le", "surrogatepass")[error.start : error.start + 2]
        escape = f"\\u{int.from_bytes(found, 'little'):04x}"
        raise ValueError(f"{escape} is half of a pair of surrogates, without the other") from None


class _Builder:
    """Turns nodes into values, and notes lines and problems on the tree."""

    def __init__(self, tree: Tree, substitute: Callable[[str], str]) -> None:
        self._tree = tree
        self._substitute = substitute

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        """Build a mapping; keys are the text that stands there, whatever type YAML sees."""
        result: dict[str, object] = {}
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._note(path, line, "a key must be a word")
                continue
            try:
                key = _text(key_node)
            except ValueError as error:
                self._note(path, line, f"a key: {error}")
                continue
            here = (*path, key)
            self._tree.lines[here] = line
            if key in seen:
                self._note(here, line, f"given twice, first on line {seen[key]}")
                continue
            seen[key] = line
            value = self._value(value_node, here)
            if value is not None:
                result[key] = value
        return result

    def sequence(self, node: yaml.SequenceNode, path: Path) -> list[object]:
        """Build a list."""
        return [self._value(item, (*path, index)) for index, item in enumerate(node.value)]

    def _value(self, node: yaml.Node, path: Path) -> object:
        self._tree.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode) and node.tag == _MAP:
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _SEQ:
            return self.sequence(node, path)
        return self._scalar(node, path)

    def _scalar(self, node: yaml.Node, path: Path) -> object:
        line = node.start_mark.line + 1
        if not isinstance(node, yaml.ScalarNode) or node.tag not in _SCALARS:
            self._note(path, line, f"the tag {node.tag} is not supported")
            return None
        try:
            if node.tag == _STR:
                return self._substitute(_text(node))
            return _SCALARS[node.tag](node.value)
        except ValueError as error:
            self._note(path, line, str(error))
            return node.value

    def _note(self, path: Path, line: int, message: str) -> None:
        if len(self._tree.problems) <= MAX_PROBLEMS:
            self._tree.problems.append(Problem(format_path(path), message, line))
