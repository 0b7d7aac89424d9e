"""Settings of variants: several models, or versions of one, that serve one name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import BeforeValidator, Field, PlainValidator, StringConstraints, WithJsonSchema

from lb.settings.problems import Finding, show
from lb.settings.section import Section
from lb.settings.units import PositiveDuration
from lb.settings.values import (
    BackendName,
    HeaderName,
    HeaderValue,
    Number,
    PositiveCount,
    text_schema,
)

MAX_VARIANTS: Final = 16
_STICKY: Final = re.compile(r"none|sequence|tenant|header:[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_FACTOR: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)x?")


def read_factor(value: object) -> object:
    """Turn `2x` into a number; anything else is left to the check for numbers.

    Raises:
        ValueError: it is a text that means no factor.
    """
    if not isinstance(value, str):
        return value
    match = _FACTOR.fullmatch(value)
    if match is None:
        raise ValueError(f"expected a factor such as 2x or 1.5x, got {show(value)}")
    return float(match[1])


def read_sticky(value: object) -> str:
    """Check what keeps a client with its variant.

    Raises:
        ValueError: with a message that says what was expected.
    """
    if not isinstance(value, str) or not _STICKY.fullmatch(value):
        raise ValueError(f"expected none, sequence, tenant or header:NAME, got {show(value)}")
    return value


Factor = Annotated[
    Number,
    BeforeValidator(read_factor),
    Field(gt=1, le=1000),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": f"^{_FACTOR.pattern}$", "examples": ["2x"]},
                {"type": "number", "exclusiveMinimum": 1, "maximum": 1000},
            ]
        }
    ),
]
"""A number above 1, also written as `2x`."""
Sticky = Annotated[str, PlainValidator(read_sticky), text_schema(_STICKY)]
"""`none`, `sequence`, `tenant` or `header:NAME`."""
Percent = Annotated[Number, Field(gt=0, le=100)]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[^/\s]+$")]
"""The name of a model as it stands on the wire."""
VariantName = Annotated[
    str, StringConstraints(max_length=64, pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$")
]
"""A name for logs, metrics, headers and commands."""
Version = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,19}$")]


class MatchSettings(Section):
    """A header by which requests get a variant, whatever the weights."""

    header: HeaderName
    """Name of the header, or of the gRPC metadata.

    Set this when clients choose a variant by a header; otherwise weights decide."""
    value: HeaderValue
    """The value that it must have.

    Set this when clients choose a variant by a header; otherwise weights decide."""


class VariantSettings(Section):
    """A model, or a version of one, that serves a share of the requests for a name."""

    name: VariantName
    """Name of the variant in commands, metrics and the access log.

    Set this when a name has variants; otherwise there is nothing to name."""
    model: ModelName
    """The model on the Tritons. It may be the name itself, but no other name with variants.

    Set this when a name has variants; otherwise the name is that of the model."""
    version: Version | None = None
    """The version of the model.

    Set this when variants are versions of one model, as text (`"3"`); otherwise the Triton's
    version policy decides."""
    backends: tuple[BackendName, ...] = ()
    """Names of the only backends that get requests for this model and version, whoever asks for
    them.

    Set this when a variant runs on some of the Tritons although others have its model; otherwise
    every backend that has the model ready serves it."""
    weight: Annotated[Number, Field(ge=0, le=1_000_000)] = 0.0
    """Share of the requests relative to the other weights.

    Set this when the variant should get requests from the start; otherwise it gets only those that
    name it."""
    match: MatchSettings | None = None
    """A header by which requests get this variant.

    Set this when testers or single clients should get the variant; otherwise weights decide."""


class RampSettings(Section):
    """Raises the share of the last variant evenly."""

    from_: Percent | None = None
    """Share of the last variant at the beginning, in percent.

    Set this when the ramp should begin with another share than the weights say; otherwise they
    hold."""
    to: Percent
    """Share of the last variant at the end, in percent.

    Set this when a share should rise by itself; otherwise it stays as it is."""
    over: PositiveDuration
    """How long that takes.

    Set this when a share should rise by itself; otherwise it stays as it is."""


class RollbackSettings(Section):
    """Takes a variant that is worse than the first one out of service. A sequential test decides,
    so that noise does not."""

    errors: Factor | None = 2.0
    """Roll back once a variant certainly has more than this many times the errors of the first one
    (`2x`). One error in 200 requests is always allowed.

    Set this when errors of a variant matter more or less; otherwise more than twice as many roll it
    back."""
    p99: Factor | None = None
    """Roll back once the 99th percentile of a variant's latency is more than this many times that
    of the first one (`1.5x`). Latency must certainly be so there, or at the 80th percentile.

    Set this when a slower variant must not stay; otherwise latency is not judged."""
    min_requests: PositiveCount = 200
    """Requests for the name before anything is judged.

    Set this when the first requests are unlike the rest; otherwise 200 are enough."""


def variant_problems(
    variants: tuple[VariantSettings, ...],
    sticky: str,
    ramp: RampSettings | None,
    rollback: RollbackSettings | None,
) -> Iterable[Finding]:
    """Yield what is wrong between the settings of the variants of one name."""
    if not variants:
        given = {"sticky": sticky != "none", "ramp": ramp, "rollback": rollback}
        for key, value in given.items():
            if value:
                yield (key,), "needs variants"
        return
    if len(variants) > MAX_VARIANTS:
        yield ("variants",), f"at most {MAX_VARIANTS} variants, got {len(variants)}"
    if not sum(variant.weight for variant in variants):
        yield ("variants",), "the weights add up to 0, so that nobody would get a request"
    for key, value in (("ramp", ramp), ("rollback", rollback)):
        if value is not None and len(variants) < 2:
            yield (key,), "needs a second variant"
    names: dict[str, int] = {}
    served: dict[tuple[str, str | None], int] = {}
    for index, variant in enumerate(variants):
        first = names.setdefault(variant.name, index)
        if first != index:
            yield ("variants", index, "name"), f"variants[{first}] has the same name"
        first = served.setdefault((variant.model, variant.version), index)
        if first != index:
            yield ("variants", index, "model"), f"variants[{first}] is the same model and version"
    if ramp is not None and len(variants) > 1:
        share = 100 * variants[-1].weight / (sum(each.weight for each in variants) or 1.0)
        if ramp.from_ is not None:
            share = ramp.from_
        if share >= ramp.to:
            yield ("ramp", "to"), f"the share of the last variant is {share:g} percent already"
