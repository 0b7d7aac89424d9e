"""How a comparison of a model and its shadow reads, at a terminal and as Markdown."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from lb.admin.compare_models import Agreement, ComparedExample, ComparedOutput, Comparison
from lb.admin.models import Latency
from lb.cli.compare import comparison_lines, comparison_markdown

NOTHING = Agreement(compared=0, same=0, percent=None, low_percent=0.0, high_percent=100.0)
MOST = Agreement(compared=200, same=194, percent=97.0, low_percent=92.5, high_percent=99.1)


def output(**changed: Any) -> ComparedOutput:
    usual = ComparedOutput(
        name="logits",
        agreement=MOST,
        noise=NOTHING,
        differs=True,
        form_differs=0,
        elements=2000,
        elements_outside=6,
        nan_differs=0,
        max_abs=0.0123,
        max_rel=2.5,
        min_cosine=0.99,
        noise_max_abs=0.0,
        top_1=MOST,
        top_1_noise=NOTHING,
        top_k=NOTHING,
        decades={"1e-02": 6, "equal": 190, "1e-06": 4},
    )
    return usual.model_copy(update=changed)


def comparison(**changed: Any) -> Comparison:
    usual = Comparison(
        model="bert",
        shadow="bert_v2:3",
        percent=5.0,
        atol=1e-6,
        rtol=1e-3,
        top_k=5,
        notes=[],
        copies={},
        noise_copies={},
        agreement=MOST,
        noise=NOTHING,
        differs=None,
        status_differs=1,
        unreadable=2,
        dropped=3,
        latency=Latency(p50_ms=1.5, p99_ms=20.25),
        shadow_latency=Latency(p50_ms=None, p99_ms=None),
        outputs=[],
        examples=[],
    )
    return usual.model_copy(update=changed)


@pytest.mark.parametrize(
    ("differs", "verdict"),
    [
        (None, "unknown: too little was compared with the model itself"),
        (True, "differs more than the model from itself"),
        (False, "no difference beyond noise"),
    ],
)
def test_the_first_line_is_the_verdict(differs: bool | None, verdict: str) -> None:
    lines = comparison_lines(comparison(differs=differs, notes=["no backend has bert_v2"]))
    assert lines[0] == f"verdict: {verdict}"
    assert "same: 97.00 % (99 % interval 92.50 to 99.10), of 200 pairs of answers" in lines
    assert "the model and itself: unknown, of 0" in lines
    assert "latency: p50 1.5 ms, p99 20.25 ms" in lines
    assert "latency of bert_v2:3: p50 -, p99 -" in lines
    assert "copies, 5 % of requests: none yet" in lines
    assert "note: no backend has bert_v2" in lines


def test_outputs_are_rows_and_their_differences_are_ordered_by_size() -> None:
    same = output(name="scores\x1b[2J", differs=False, decades={})
    lines = comparison_lines(
        comparison(outputs=[output(), same], copies={"answered": 9, "error": 1})
    )
    (row,) = (line for line in lines if line.startswith("logits ") and "97.00" in line)
    assert row.split() == [
        "logits",
        "97.00",
        "92.50",
        "to",
        "99.10",
        "-",
        "97.00",
        "0.0123",
        "2.5",
        "differs",
    ]
    assert "logits: pairs by largest difference: 1e-06: 4, 1e-02: 6, equal: 190" in lines
    assert "copies, 5 % of requests: 9 answered, 1 error" in lines
    assert not any("\x1b" in line for line in lines)


def test_markdown_has_examples_and_nothing_that_clients_could_break_it_with() -> None:
    example = ComparedExample(id="a|b<script>", output="logits", why="values", error=0.5)
    lines = comparison_markdown(comparison(outputs=[output()], examples=[example]))
    assert lines[0] == "# bert and bert_v2:3"
    assert lines[-1] == "| a\\|b&lt;script> | logits | 0.5 | values |"
    assert "| --- | --- | --- | --- |" in lines
    unequal = ComparedExample(id="", output="", why="status 200 and 400", error=sys.float_info.max)
    lines = comparison_markdown(comparison(examples=[unequal]))
    assert lines[-1] == "| - | - | inf | status 200 and 400 |"
    assert not any("OUTPUT | SAME" in line for line in lines)  # there are no outputs to compare
    without = comparison_markdown(comparison(outputs=[output()]))
    assert not any("REQUEST" in line for line in without)
