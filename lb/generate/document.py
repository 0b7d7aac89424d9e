"""YAML that people read: keys in the order given, parts that repeat written once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import yaml

HEADER: Final = "# Written by `triton-lb generate`."
"""First line of every file that can have one; by it a file is known to be ours."""
COMMAND: Final = "Command: "
"""Begins the comment of a stack's main file that tells the command line it was made by."""
_WIDTH: Final = 1000
"""Lines are not folded: a diff then shows what changed."""
_MERGE_TAG: Final = "tag:yaml.org,2002:merge"


class Shared(dict[str, Any]):
    """A mapping that stands once, under a name, and is merged into others by `merged`."""

    def __init__(self, anchor: str, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        self.anchor = anchor


class _Merge(str):
    """The key `<<`."""

    __slots__ = ()


def merged(shared: Shared, own: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping with all of `shared`, and `own` over it."""
    return {_Merge("<<"): shared, **own}


class _Dumper(yaml.SafeDumper):
    """Knows `Shared` and `_Merge`; repeats everything else."""

    def ignore_aliases(self, data: Any) -> bool:
        """Whether each occurrence is written out."""
        return not isinstance(data, Shared)

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent lists below their key, as Compose files and manifests have them."""
        super().increase_indent(flow, False)

    def generate_anchor(self, node: yaml.Node) -> str:
        """The name given, instead of a number."""
        return str(getattr(node, "anchor_name"))  # noqa: B009


def _represent_shared(dumper: _Dumper, data: Shared) -> yaml.Node:
    node = dumper.represent_dict(data)
    setattr(node, "anchor_name", data.anchor)  # noqa: B010
    return node


def _represent_merge(dumper: _Dumper, data: _Merge) -> yaml.Node:
    return dumper.represent_scalar(_MERGE_TAG, str(data))


def _represent_text(dumper: _Dumper, data: str) -> yaml.Node:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", data, style="|" if "\n" in data else None
    )


_Dumper.add_representer(Shared, _represent_shared)
_Dumper.add_representer(_Merge, _represent_merge)
_Dumper.add_representer(str, _represent_text)


def command_comment(command: str) -> tuple[str, ...]:
    """The comment that tells a command line; none where it is empty."""
    return (f"{COMMAND}{command}",) if command else ()


def document(content: Mapping[str, Any], *comments: str) -> str:
    """The text of a YAML file, `comments` (lines) at its top."""
    heading = "".join(f"# {line}\n" if line else "#\n" for line in comments)
    text = yaml.dump(
        dict(content), Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True
    )
    return f"{HEADER}\n{heading}\n{text}"
