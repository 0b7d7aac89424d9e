"""Adds the metrics pages of backends to ours: each sample gets a `backend` label, each family has
one HELP and one TYPE.

Format: Prometheus text format 0.0.4. Lines that do not follow its grammar are left out, because a
scraper refuses a whole page for one bad line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
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


STEP_BYTES: Final = 16 * 1024
"""Bytes of a page that one step reads: 1.5 ms where all of it is labels, which are the slowest."""
_STEP_LINES: Final = 500
"""Lines of a step: about a millisecond."""
MAX_LINE_BYTES: Final = 16 * 1024
"""Longest line. A Triton's have about 100 bytes, and the text of a HELP may have more."""
MAX_LINES: Final = 100_000
"""Lines of a page. A Triton with a thousand models writes 22,000."""
MAX_FAMILIES: Final = 2000
"""Families of a page. A Triton has about 40, and custom metrics of its models come on top."""
FAMILY_BYTES: Final = 512
"""What a family takes beside its lines."""


class Family:
    """The lines of one metric family, from any number of pages. Each ends with a newline."""

    __slots__ = ("help", "samples", "type")

    def __init__(self) -> None:
        self.help = b""
        self.type = b""
        self.samples: list[bytearray] = []
        """Those of one page each."""

    def lines(self) -> Iterable[bytes | bytearray]:
        """The family as it stands on a page."""
        return (self.help, self.type, *self.samples)


class BackendPage:
    """The page of one backend, with its label in each sample. It may come in parts."""

    def __init__(self, backend: str) -> None:
        """
        Args:
            backend: value of the label.
        """
        self.families: dict[bytes, Family] = {}
        """By name."""
        self.size = 0
        """Bytes that are held."""
        self.left_out = 0
        """Lines that were left out because they are too long or belong to too many families."""
        self.is_full = False
        """No line is taken any more."""
        escaped = backend.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
        self._label = b'{backend="' + escaped.encode() + b'"'
        self._lines = 0
        self._rest = b""
        """A line whose end has not come yet."""
        self._is_within_long = False
        """What comes next belongs to a line that is too long."""

    def read(self, text: bytes) -> Iterator[None]:
        """Take over a part of the page in steps. Lines that are no sample, HELP or TYPE are left
        out.

        Args:
            text: at most `STEP_BYTES`; it may end within a line.
        """
        lines = text.split(b"\n")
        if self._is_within_long:
            if len(lines) == 1:
                yield
                return
            self._is_within_long = False
            del lines[0]
        else:
            lines[0] = self._rest + lines[0]
        self._rest = lines.pop()
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest = b""
            self._is_within_long = True
            self.left_out += 1
        for begin in range(0, len(lines) or 1, _STEP_LINES):
            self._take(lines[begin : begin + _STEP_LINES])
            yield

    def finish(self) -> None:
        """Take over the last line, which needs no end."""
        self._take([self._rest])

    def _take(self, lines: list[bytes]) -> None:
        self._lines += len(lines)
        if self._lines > MAX_LINES:
            self.is_full = True
        if self.is_full:
            self.left_out += len(lines)
            return
        for line in lines:
            if not line:
                continue
            if len(line) > MAX_LINE_BYTES:
                self.left_out += 1
            elif line.startswith(b"#"):
                self._add_meta(line)
            else:
                self._add_sample(line)

    def _add_sample(self, line: bytes) -> None:
        match = _SAMPLE.fullmatch(line)
        if match is None:
            return
        name, labels, value = match["name"], match["labels"], match["value"]
        family = self._family_of(name)
        if family is None:
            self.left_out += 1
            return
        if labels:
            if b"backend" in labels:
                labels = _rename_backend(labels)
            sample = b"".join((name, self._label, b",", labels, b"} ", value, b"\n"))
        else:
            sample = b"".join((name, self._label, b"} ", value, b"\n"))
        family.samples[0] += sample
        self.size += len(sample)

    def _add_meta(self, line: bytes) -> None:
        match = _META.fullmatch(line)
        if match is None:
            return
        family = self._family(match["help"] or match["type"])
        if family is None:
            self.left_out += 1
            return
        self.size += len(line) + 1
        if match["help"]:
            family.help = family.help or line + b"\n"
        else:
            family.type = family.type or line + b"\n"

    def _family_of(self, sample: bytes) -> Family | None:
        return find_family(self.families, sample) or self._family(sample)

    def _family(self, name: bytes) -> Family | None:
        """The family of this name; None where there are too many."""
        family = self.families.get(name)
        if family is None and len(self.families) < MAX_FAMILIES:
            family = self.families[name] = Family()
            family.samples.append(bytearray())
            self.size += FAMILY_BYTES + len(name)
        return family


class MergedPages:
    """Families of any number of backends' pages, in the order of their first appearance."""

    def __init__(self) -> None:
        self._families: dict[bytes, Family] = {}

    @property
    def families(self) -> Mapping[bytes, Family]:
        """By name."""
        return self._families

    def add(self, page: BackendPage) -> None:
        """Take over a page. Its lines are not copied."""
        for name, family in page.families.items():
            known = find_family(self._families, name)
            if known is None:
                known = self._families[name] = Family()
            known.help = known.help or family.help
            known.type = known.type or family.type
            known.samples += [part for part in family.samples if part]


def find_family(families: Mapping[bytes, Family], sample: bytes) -> Family | None:
    """The family that a sample belongs to, by its name or as a part of a histogram."""
    family = families.get(sample)
    return families.get(_PART.sub(b"", sample)) if family is None else family


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
