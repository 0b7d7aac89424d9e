"""`triton-lb compare`: how the answers of a shadow compare, for a terminal or for a release."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from lb.admin.compare_models import Agreement, ComparedOutput, Comparison
from lb.cli.tables import plain_table, printable

_HEADINGS = ("OUTPUT", "SAME %", "99 % INTERVAL", "NOISE %", "TOP-1 %", "MAX ABS", "MAX REL", "")
_VERDICTS = {
    None: "unknown: too little was compared with the model itself",
    True: "differs more than the model from itself",
    False: "no difference beyond noise",
}


def comparison_lines(each: Comparison) -> list[str]:
    """Describe a comparison for a terminal."""
    return [
        *map(printable, _facts(each)),
        *(plain_table(_rows(each), _HEADINGS) if each.outputs else ()),
        *_distribution(each),
    ]


def comparison_markdown(each: Comparison) -> list[str]:
    """Describe a comparison as Markdown."""
    lines = [f"# {_escaped(each.model)} and {_escaped(each.shadow)}", ""]
    lines += [f"- {_escaped(fact)}" for fact in _facts(each)]
    if each.outputs:
        lines += ["", _row(_HEADINGS), _row(("---",) * len(_HEADINGS))]
        lines += [_row([_escaped(cell) for cell in row]) for row in _rows(each)]
        lines += ["", *(f"- {_escaped(line)}" for line in _distribution(each))]
    if each.examples:
        lines += ["", _row(("REQUEST", "OUTPUT", "ERROR", "WHY")), _row(("---",) * 4)]
        for example in each.examples:
            cells = (
                example.id or "-",
                example.output or "-",
                _error(example.error),
                example.why,
            )
            lines.append(_row([_escaped(cell) for cell in cells]))
    return lines


def _facts(each: Comparison) -> Iterator[str]:
    yield f"verdict: {_VERDICTS[each.differs]}"
    yield f"same: {_share(each.agreement)}, of {each.agreement.compared} pairs of answers"
    yield f"the model and itself: {_share(each.noise)}, of {each.noise.compared}"
    yield (
        f"tolerance: {each.atol:g} + {each.rtol:g} x value; "
        f"{each.status_differs} with another status, {each.unreadable} unreadable, "
        f"{each.dropped} dropped"
    )
    yield f"latency: p50 {_ms(each.latency.p50_ms)}, p99 {_ms(each.latency.p99_ms)}"
    shadow = each.shadow_latency
    yield f"latency of {each.shadow}: p50 {_ms(shadow.p50_ms)}, p99 {_ms(shadow.p99_ms)}"
    fates = ", ".join(f"{count} {fate}" for fate, count in sorted(each.copies.items()))
    yield f"copies, {each.percent:g} % of requests: {fates or 'none yet'}"
    for note in each.notes:
        yield f"note: {note}"


def _rows(each: Comparison) -> list[tuple[str, ...]]:
    return [_output_row(output) for output in each.outputs]


def _output_row(output: ComparedOutput) -> tuple[str, ...]:
    agreement = output.agreement
    return (
        output.name,
        _percent(agreement),
        f"{agreement.low_percent:.2f} to {agreement.high_percent:.2f}",
        _percent(output.noise),
        _percent(output.top_1),
        _error(output.max_abs),
        _error(output.max_rel),
        "differs" if output.differs else "",
    )


def _distribution(each: Comparison) -> Iterator[str]:
    """How large differences are, by output."""
    for output in each.outputs:
        decades = sorted(output.decades.items(), key=lambda item: _exponent(item[0]))
        text = ", ".join(f"{decade}: {count}" for decade, count in decades)
        yield printable(f"{output.name}: pairs by largest difference: {text}")


def _exponent(decade: str) -> float:
    try:
        return float(decade)
    except ValueError:  # of types without fractions
        return 1.0


def _share(agreement: Agreement) -> str:
    if agreement.percent is None:
        return "unknown"
    return (
        f"{agreement.percent:.2f} % "
        f"(99 % interval {agreement.low_percent:.2f} to {agreement.high_percent:.2f})"
    )


def _percent(agreement: Agreement) -> str:
    return "-" if agreement.percent is None else f"{agreement.percent:.2f}"


def _error(value: float) -> str:
    """A difference. JSON has no infinity, for which the largest number stands."""
    return "inf" if value >= sys.float_info.max else f"{value:.3g}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g} ms"


def _row(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """A text of clients or models, harmless in Markdown."""
    return printable(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
