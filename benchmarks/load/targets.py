"""What triton-lb is meant to reach, and whether a run shows it."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.load.proxies import COMPILED, ENVOY, HAPROXY, TRITON_LB
from benchmarks.load.results import Results, ratio
from benchmarks.load.sections import Verdict


@dataclass(frozen=True)
class Target:
    """An upper limit for triton-lb's figure divided by another proxy's, in each of some cells.

    A limit of None: none was set, the ratio is shown all the same. `figure` is a field of
    `results.Sample`. With `instead_of`, the figure is compared with our own in that cell.
    """

    title: str
    cells: tuple[str, ...]
    limits: tuple[tuple[str, float | None], ...]
    figure: str = "cpu_us"
    instead_of: str = ""


_LARGE = (
    *("http-image-1", "http-image-16", "grpc-image-1x1", "grpc-image-4x4"),
    *("http-4-mib-request-1", "http-4-mib-request-16"),
    *("grpc-4-mib-request-1x1", "grpc-4-mib-request-4x4"),
    *("http-4-mib-response-1", "http-4-mib-response-16"),
    *("grpc-4-mib-response-1x1", "grpc-4-mib-response-4x4"),
)

TARGETS = (
    Target(
        "HTTP/1.1 small: CPU per request",
        ("http-small-16", "http-small-64"),
        ((ENVOY, 0.6), (HAPROXY, 2.0)),
    ),
    Target(
        "gRPC small: CPU per request",
        ("grpc-small-8x1", "grpc-small-8x8", "grpc-small-64x4"),
        ((ENVOY, 0.5), (HAPROXY, 1.25)),
    ),
    Target(
        "never-repeating headers: CPU per request",
        ("grpc-never-repeating-headers-8x8", "http-never-repeating-headers-64"),
        ((ENVOY, 0.9), (HAPROXY, None)),
    ),
    Target(
        "602,112 B and 4 MiB: CPU per request",
        _LARGE,
        ((ENVOY, 0.9), (HAPROXY, 0.8)),
    ),
    Target(
        "602,112 B that are no inference: CPU per request",
        ("grpc-no-inference-4x4",),
        ((ENVOY, 1.2), (HAPROXY, None)),
    ),
    Target(
        "stream messages and events: CPU per message",
        ("grpc-stream-messages-8x8", "grpc-stream-messages-8x64", "http-events-16"),
        ((ENVOY, 0.6), (HAPROXY, None)),
    ),
    Target(
        "half of Envoy's rate: p99",
        ("http-small-64-half-rate", "grpc-small-8x8-half-rate"),
        ((ENVOY, 1.0), (HAPROXY, None)),
        figure="p99_us",
    ),
    Target(
        "TLS small: CPU per request",
        ("http-tls-small-64", "grpc-tls-small-8x8"),
        ((ENVOY, 0.8), (HAPROXY, None)),
    ),
    Target(
        "200 backends against 2: CPU per request",
        ("http-backends-200",),
        ((TRITON_LB, 1.15),),
        instead_of="http-backends-2",
    ),
    Target(
        "200 backends against 2: CPU per request",
        ("grpc-backends-200",),
        ((TRITON_LB, 1.15),),
        instead_of="grpc-backends-2",
    ),
)


def judge(results: Results, titles: dict[str, str]) -> list[Verdict]:
    """A verdict for every target, cell and peer, of triton-lb and of triton-lb compiled.

    Args:
        results: of a run; targets of cells and proxies that it did not have are left out.
        titles: of the cells, by name.
    """
    return [
        Verdict(
            target.title,
            titles.get(cell, cell),
            f"itself, {titles.get(target.instead_of, '')}" if target.instead_of else peer,
            _measured(results, target, cell, ours, peer),
            limit,
            ours,
        )
        for target in TARGETS
        for cell in target.cells
        if cell in results
        for peer, limit in target.limits
        if peer in results[cell]
        for ours in (TRITON_LB, COMPILED)
        if ours in results[cell]
    ]


def _measured(results: Results, target: Target, cell: str, ours: str, peer: str) -> float | None:
    if not target.instead_of:
        return ratio(results.get(cell, {}), ours, peer, target.figure)
    medians = [
        results[each][ours].median()
        for each in (cell, target.instead_of)
        if ours in results.get(each, {})
    ]
    values = [getattr(median, target.figure) for median in medians if median is not None]
    return values[0] / values[1] if len(values) == 2 else None
