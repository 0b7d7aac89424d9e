"""Settings of shadow traffic: a model that gets copies of requests, whose answers nobody waits for
and which are compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from lb.settings.problems import Finding
from lb.settings.section import Section
from lb.settings.units import PositiveDuration
from lb.settings.values import Boolean, FileName, Number, PositiveCount
from lb.settings.variants import Factor, ModelName, Percent, VariantSettings, Version

Tolerance = Annotated[Number, Field(ge=0, le=1e9)]


class ShadowSettings(Section):
    """A model that gets copies of the requests for a name, after these were answered."""

    model: ModelName
    """The model on the Tritons that gets the copies.

    Set this when a model should be tried without clients; otherwise there are no copies."""
    version: Version | None = None
    """The version of that model, as text (`"3"`).

    Set this when a version should be tried; otherwise the Triton's version policy decides."""
    percent: Percent = 10.0
    """Share of the inferences that are copied, in percent.

    Set this when more or fewer copies are wanted; otherwise every tenth inference is copied."""
    max_concurrent: Annotated[PositiveCount, Field(le=1000)] = 4
    """Copies at one backend at a time.

    Set this when a shadow should be tried with larger batches, or must disturb less; otherwise four
    run at once."""
    timeout: PositiveDuration = 10.0
    """How long an answer to a copy may take.

    Set this when the model takes longer; otherwise a copy is given up after ten seconds."""
    p99: Factor = 1.2
    """Pause the copies for ten minutes once the 99th percentile of the name's latency is more than
    this many times what it is without copies (`1.2x`). Latency must certainly be so there, or at
    the 80th percentile. To know that, one second in ten goes without copies.

    Set this when copies may slow requests more, or less; otherwise a fifth is allowed."""
    compare: Boolean = True
    """Compare the answers, in a process of its own. It needs the extra `compare`.

    Set this to false when only load and errors of the shadow matter; otherwise answers are
    compared."""
    noise: Boolean = True
    """Send up to one in ten of the copied requests to the first model again, to see how much its
    own answers differ from each other. One in a thousand of its requests may be delayed by that.

    Set this to false when that load is too much; otherwise a difference is judged by this noise."""
    atol: Tolerance = 1e-5
    """Numbers with a fraction are the same if they differ by no more than `atol` plus `rtol` times
    the first one.

    Set this when the model's numbers are larger or smaller than about 1; otherwise 0.00001."""
    rtol: Tolerance = 1e-3
    """See `atol`.

    Set this when precision differs on purpose (FP16, INT8); otherwise 0.001."""
    top_k: Annotated[PositiveCount, Field(le=1000)] = 5
    """How many of the largest values of a row are compared as a set, beside the largest one.

    Set this when clients use another number of classes; otherwise five are compared."""
    examples: FileName | None = None
    """A folder for requests whose answers differ, with both answers: 100 files at most. They hold
    what clients sent.

    Set this when you want to run such requests again; otherwise only ids are kept."""


def shadow_problems(
    shadow: ShadowSettings | None, variants: tuple[VariantSettings, ...]
) -> Iterable[Finding]:
    """Yield what is wrong between a shadow and the variants of its name."""
    if shadow is None:
        return
    if not variants:
        yield ("shadow",), "needs variants"
    elif (shadow.model, shadow.version) == (variants[0].model, variants[0].version):
        yield ("shadow", "model"), "variants[0] is the same model and version"
