"""Makes what the admin API says of shadow traffic from records."""

from __future__ import annotations

from lb.admin.compare_models import Agreement, ComparedExample, ComparedOutput, Comparison
from lb.admin.views import latency_view
from lb.comparison.shares import interval, is_certainly_higher
from lb.comparison.tally import OutputTally, Tally
from lb.domain.names import readable
from lb.proxy.shadow import Kind, Shadow, Shadows

_SHADOW = Kind.SHADOW.value
_NOISE = Kind.NOISE.value


def comparison_view(shadows: Shadows, shadow: Shadow) -> Comparison:
    """Describe the shadow of one name."""
    rules = shadow.rules
    compare = rules.compare
    tally, noise = shadow.tallies[_SHADOW], shadow.tallies[_NOISE]
    outputs = [
        _output(name, each, noise.outputs.get(name, OutputTally()))
        for name, each in tally.outputs.items()
    ]
    outputs.sort(key=lambda each: (each.agreement.high_percent, -each.max_abs, each.name))
    version = f":{rules.version.decode()}" if rules.version else ""
    return Comparison(
        model=shadow.name,
        shadow=readable(rules.model) + version,
        percent=round(100 * rules.share, 3),
        atol=0.0 if compare is None else compare.atol,
        rtol=0.0 if compare is None else compare.rtol,
        top_k=0 if compare is None else compare.top_k,
        notes=shadows.notes(shadow),
        copies=_fates(shadow, _SHADOW),
        noise_copies=_fates(shadow, _NOISE),
        agreement=_agreement(tally.same, tally.compared),
        noise=_agreement(noise.same, noise.compared),
        differs=differs(tally, noise),
        status_differs=tally.status_differs,
        unreadable=tally.unreadable,
        dropped=shadows.process.dropped,
        latency=latency_view((shadow.first_durations,)),
        shadow_latency=latency_view((shadow.durations[_SHADOW],)),
        outputs=outputs,
        examples=[
            ComparedExample(id=each.id, output=each.output, why=each.why, error=each.error)
            for each in tally.examples
        ],
    )


def differs(tally: Tally, noise: Tally) -> bool | None:
    """Whether a shadow differs more than noise; None while there is too little of that."""
    if not noise.compared:
        return None
    return is_certainly_higher(
        tally.compared - tally.same, tally.compared, noise.compared - noise.same, noise.compared
    ) or any(
        _output_differs(each, noise.outputs.get(name, OutputTally()))
        for name, each in tally.outputs.items()
    )


def _output_differs(each: OutputTally, noise: OutputTally) -> bool:
    return is_certainly_higher(
        each.differing, each.compared, noise.differing, noise.compared
    ) or is_certainly_higher(
        each.ranked - each.top_1_same, each.ranked, noise.ranked - noise.top_1_same, noise.ranked
    )


def _output(name: str, each: OutputTally, noise: OutputTally) -> ComparedOutput:
    return ComparedOutput(
        name=name,
        agreement=_agreement(each.compared - each.differing, each.compared),
        noise=_agreement(noise.compared - noise.differing, noise.compared),
        differs=_output_differs(each, noise) if noise.compared else None,
        form_differs=each.form_differs,
        elements=each.elements,
        elements_outside=each.elements_outside,
        nan_differs=each.nan_differs,
        max_abs=each.max_abs,
        max_rel=each.max_rel,
        min_cosine=each.min_cosine,
        noise_max_abs=noise.max_abs,
        top_1=_agreement(each.top_1_same, each.ranked),
        top_1_noise=_agreement(noise.top_1_same, noise.ranked),
        top_k=_agreement(each.top_k_same, each.ranked),
        decades=each.decades,
    )


def _agreement(same: int, compared: int) -> Agreement:
    low, high = interval(same, compared)
    return Agreement(
        compared=compared,
        same=same,
        percent=round(100 * same / compared, 4) if compared else None,
        low_percent=round(100 * low, 4),
        high_percent=round(100 * high, 4),
    )


def _fates(shadow: Shadow, kind: str) -> dict[str, int]:
    return {fate: count for (each, fate), count in shadow.fates.items() if each == kind}
