"""Adds the metrics pages of backends to ours: each sample gets a `backend` label, each family has
one HELP and one TYPE.

Format: Prometheus text format 0.0.4. Lines that do not follow its grammar are left out, because a
scraper refuses a whole page for one bad line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

_NAME: Final = rb"[a-zA-Z_:][a-zA-Z0-9_:]*+"
# All repetitions are possessive: a hostile line costs time in proportion to its length.
_PAIR: Final = rb'([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+("(?:[^"\\]|\\[\\n"])*+")'
_LABELS: Final = rb"(?:" + _PAIR + rb"[ \t]*+(?:,[ \t]*+|(?=\})))*+"
_NUMBER: Final = rb"[-+]?+(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][-+]?+[0-9]++)?+"
_SAMPLE: Final = re.compile(
    rb"(?P<name>" + _NAME + rb")[ \t]*+"
    rb"(?:\{[ \t]*+(?P<labels>" + _LABELS + rb")\})?+[ \t]*+"
    rb"(?P<value>(?:" + _NUMBER + rb"|[-+]?+(?i:inf|nan))(?:[ \t]++-?+[0-9]++)?+)[ \t]*+"
)
_ONE_PAIR: Final = re.compile(_PAIR)
_META: Final = re.compile(
    rb"#[ \t]++(?:HELP[ \t]++(?P<help>" + _NAME + rb")(?:[ \t](?:[^\\]|\\[\\n])*+)?+"
    rb"|TYPE[ \t]++(?P<type>" + _NAME + rb")[ \t]++"
    rb"(?:counter|gauge|histogram|summary|untyped)[ \t]*+)"
)
_PART: Final = re.compile(rb"_(?:bucket|sum|count)$")
"""Ends of sample names that belong to a histogram or summary."""


class Family:
    """The lines of one metric family, from any number of pages. Each ends with a newline."""

    __slots__ = ("help", "samples", "type")

    def __init__(self) -> None:
        self.help = b""
        self.type = b""
        self.samples: list[bytes] = []

    def lines(self) -> Iterable[bytes]:
        """The family as it stands on a page."""
        return (self.help, self.type, *self.samples)


class MergedPages:
    """Families of any number of backends' pages, in the order of their first appearance."""

    def __init__(self) -> None:
        self._families: dict[bytes, Family] = {}

    @property
    def families(self) -> Mapping[bytes, Family]:
        """By name."""
        return self._families

    def add(self, lines: Iterable[bytes], backend: str) -> None:
        """Take over lines of one backend's page; may be called with parts of a page.

        Args:
            lines: without line ends. What is no sample, HELP or TYPE is left out.
            backend: value of the label.
        """
        escaped = backend.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
        label = b'{backend="' + escaped.encode() + b'"'
        for line in lines:
            if line.startswith(b"#"):
                self._add_meta(line)
                continue
            match = _SAMPLE.fullmatch(line)
            if match is None:
                continue
            name, labels, value = match["name"], match["labels"], match["value"]
            if labels:
                if b"backend" in labels:
                    labels = _rename_backend(labels)
                sample = b"".join((name, label, b",", labels, b"} ", value, b"\n"))
            else:
                sample = b"".join((name, label, b"} ", value, b"\n"))
            self._family_of(name).samples.append(sample)

    def _add_meta(self, line: bytes) -> None:
        match = _META.fullmatch(line)
        if match is None:
            return
        if match["help"]:
            family = self._families.setdefault(match["help"], Family())
            family.help = family.help or line + b"\n"
        else:
            family = self._families.setdefault(match["type"], Family())
            family.type = family.type or line + b"\n"

    def _family_of(self, sample: bytes) -> Family:
        family = self._families.get(sample)
        if family is None:
            family = self._families.get(_PART.sub(b"", sample))
        if family is None:
            family = self._families[sample] = Family()
        return family


def _rename_backend(labels: bytes) -> bytes:
    """Rename a label that would collide with ours, as Prometheus does when it scrapes."""
    pairs = _ONE_PAIR.findall(labels)
    names = {name for name, _ in pairs}
    if b"backend" not in names:
        return labels
    renamed = b"exported_backend"
    while renamed in names:
        renamed = b"exported_" + renamed
    return b",".join(
        (renamed if name == b"backend" else name) + b"=" + value for name, value in pairs
    )
