"""What comparisons came to: counts that add up, as the process that compares reports them.

All of it is JSON, so that it crosses the process boundary as it is: a `Tally` is made of one
comparison, or of many, and tallies are added.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

EXAMPLES: Final = 20
"""Examples that are kept."""


@dataclass(slots=True)
class Example:
    """A request whose answers differ."""

    id: str
    output: str
    """The one that differs most; empty where it is no output that differs."""
    why: str
    error: float = 0.0
    """The largest absolute difference."""


@dataclass(slots=True, kw_only=True)
class OutputTally:
    """One output over all comparisons of answers that have it."""

    compared: int = 0
    """Pairs of answers."""
    differing: int = 0
    """Those that are not the same within the tolerance."""
    form_differs: int = 0
    """Those of another data type or shape, or with the output in one answer only."""
    elements: int = 0
    elements_outside: int = 0
    """Elements that are not the same within the tolerance."""
    nan_differs: int = 0
    """Elements that are NaN in one answer only."""
    max_abs: float = 0.0
    max_rel: float = 0.0
    min_cosine: float | None = None
    """Of numbers with a fraction."""
    ranked: int = 0
    """Pairs with rows of two or more numbers."""
    top_1_same: int = 0
    """Those where every row has its largest value at the same place."""
    top_k_same: int = 0
    """Those where every row has the same k largest."""
    decades: dict[str, int] = field(default_factory=dict)
    """Pairs by the decimal exponent of their largest absolute difference; `0` where there is
    none."""

    def add(self, other: OutputTally) -> None:
        """Add the counts of further comparisons."""
        for name in (
            "compared", "differing", "form_differs", "elements", "elements_outside", "nan_differs",
            "ranked", "top_1_same", "top_k_same",
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.max_abs = max(self.max_abs, other.max_abs)
        self.max_rel = max(self.max_rel, other.max_rel)
        cosines = [each for each in (self.min_cosine, other.min_cosine) if each is not None]
        self.min_cosine = min(cosines, default=None)
        for decade, count in other.decades.items():
            self.decades[decade] = self.decades.get(decade, 0) + count


@dataclass(slots=True, kw_only=True)
class Tally:
    """All comparisons of one kind."""

    compared: int = 0
    """Pairs of answers that could be compared, or whose statuses differ."""
    same: int = 0
    """Those that are the same within the tolerance."""
    status_differs: int = 0
    """Those where one is an error and the other is not, or an error of another class."""
    unreadable: int = 0
    """Pairs that could not be compared."""
    outputs: dict[str, OutputTally] = field(default_factory=dict)
    examples: list[Example] = field(default_factory=list)
    """The ones with the largest difference, largest first."""

    def add(self, other: Tally) -> None:
        """Add the counts of further comparisons."""
        self.compared += other.compared
        self.same += other.same
        self.status_differs += other.status_differs
        self.unreadable += other.unreadable
        for name, each in other.outputs.items():
            self.outputs.setdefault(name, OutputTally()).add(each)
        if other.examples:
            examples = sorted(
                [*self.examples, *other.examples], key=lambda each: each.error, reverse=True
            )
            self.examples = examples[:EXAMPLES]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Make it of what `as_json` returned."""
        tally = cls(**data)
        tally.outputs = {name: OutputTally(**each) for name, each in data["outputs"].items()}
        tally.examples = [Example(**each) for each in data["examples"]]
        return tally
