"""What is not known of a model is None."""

from __future__ import annotations

from lb.domain.model import NO_FACTS, ModelFacts


def test_without_its_configuration_nothing_is_known() -> None:
    assert ModelFacts() == NO_FACTS
    assert NO_FACTS.is_stateful is NO_FACTS.is_decoupled is None
    assert NO_FACTS.idle_s == 1.0, "Triton's default"
