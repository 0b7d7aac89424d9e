"""Which of the backends that may get requests are left out because of how requests fare on them.

Only as long as enough are left: passive signals may be wrong about all of them at once, and a
server that fails sometimes is better than none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from lb.control.routes import Candidate, Tiers
from lb.domain.backend import Backend
from lb.health.models import Version


def leave_out(
    tiers: Tiers,
    out: Collection[Backend],
    models: Mapping[Backend, frozenset[bytes]],
    least: float,
) -> Tiers:
    """Take out who is ejected: as a whole, to be used when nothing better has a model, or for
    some models.

    Args:
        tiers: the candidates of one protocol.
        out: backends that are ejected as a whole.
        models: names of models for which a backend is ejected.
        least: share of the candidates that must be left; where fewer would be, all stay.
    """
    gone = {
        each.backend
        for each in tiers.for_models
        # What has no list may have any model, so it cannot be out for one of them only.
        if each.backend in out or (each.ready is None and each.backend in models)
    }
    if not _are_enough(len(tiers.for_models) - len(gone), len(tiers.for_models), least):
        gone = set()
    left = tuple(each for each in tiers.for_models if each.backend not in gone)
    up = tuple(each for each in tiers.up if each.backend not in gone)
    suspected = tuple(each for each in tiers.for_models if each.backend in gone)
    return Tiers(
        up=up,
        partial=tuple(each for each in tiers.partial if each.backend not in gone),
        suspected=tiers.suspected + suspected,
        for_models=tuple(_without(each, left, models, least) for each in left),
        unready=tiers.unready,
    )


def _without(
    candidate: Candidate,
    all_left: Sequence[Candidate],
    models: Mapping[Backend, frozenset[bytes]],
    least: float,
) -> Candidate:
    """A candidate without the models for which it is out and enough others are not."""
    ejected = models.get(candidate.backend)
    if not ejected or candidate.ready is None:
        return candidate
    hidden = frozenset(
        version
        for version in candidate.ready
        if version[0] in ejected and _others_do(version, all_left, models, least)
    )
    return candidate._replace(ready=candidate.ready - hidden) if hidden else candidate


def _others_do(
    version: Version,
    candidates: Sequence[Candidate],
    models: Mapping[Backend, frozenset[bytes]],
    least: float,
) -> bool:
    holders = [each for each in candidates if each.ready is None or version in each.ready]
    good = sum(version[0] not in models.get(each.backend, ()) for each in holders)
    return _are_enough(good, len(holders), least)


def _are_enough(left: int, of_all: int, least: float) -> bool:
    return left > 0 and left >= least * of_all
