from __future__ import annotations

import json

from lb.admin.openapi import openapi_document
from lb.admin.render import render_backend
from lb.control.views import backend_view
from tests.fakes.pool import make_pool
from tests.unit.admin.schema import problems, resolve


def test_a_backend_is_rendered_in_the_documented_shape() -> None:
    document = openapi_document("1.2.3")
    schema = resolve("#/components/schemas/Backend", document)
    directory = make_pool()
    directory.find("a").backend.ports[0].latency.counts[3] = 5  # type: ignore[union-attr]
    for name in ("a", "b"):
        rendered = render_backend(backend_view(directory.find(name), 111.0))
        assert problems(json.loads(json.dumps(rendered)), schema, document) == []


def test_numbers_are_rounded_and_in_the_units_of_their_names() -> None:
    rendered = render_backend(backend_view(make_pool().find("b"), 111.123456))
    assert rendered["since_s"] == 10.123
    assert rendered["ports"]["http"]["probe_ms"] == 2.0
    assert rendered["latency"] == {"p50_ms": None, "p99_ms": None}
    assert rendered["ports"]["grpc"]["why"] == "closed"
