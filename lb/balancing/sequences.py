"""Which backend runs which sequence, over all protocols and connections.

A sequence is pinned by its START to the backend with the fewest open sequences of its model for
its weight; its other steps follow; its END, or a long silence, frees it. A pin wins over who may
get new requests, so a backend that drains keeps what it runs. When a backend has died its pins
are lost: the next step of each is told so, and the next START is placed afresh.

Nothing here looks at all pins: expiry takes the oldest few at each step, and what a backend took
along when it died is found out pin by pin.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from math import log
from typing import Final

from lb.domain.backend import Backend
from lb.domain.errors import RequestRefused
from lb.domain.outcome import Reason
from lb.domain.pool import Placement
from lb.domain.sequence import SequenceKey, SequenceStep

IDLE_FACTOR: Final = 10.0
"""A pin outlives Triton's own memory of the sequence by far: a late step should get Triton's
answer from the backend that knows best."""
_EXPIRED_PER_STEP: Final = 2
"""Looked at per step; one step adds at most one pin."""
_EVICTION_TRIES: Final = 16


class Affinity(Enum):
    """How the backend of a new sequence is chosen."""

    LEAST_OPEN = "least_open"
    RENDEZVOUS = "rendezvous"
    """By a hash of the key over the eligible backends: replicas of the balancer agree on it
    without telling each other."""


class _Model:
    """The open sequences of one model."""

    __slots__ = ("name", "open", "shares")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.open = 0
        self.shares: dict[Backend, _Share] = {}


class _Share:
    """Those of them that run on one backend, until it dies."""

    __slots__ = ("backend", "deaths", "model", "open")

    def __init__(self, model: _Model, backend: Backend) -> None:
        self.model = model
        self.backend = backend
        self.deaths = backend.deaths
        self.open = 0

    @property
    def is_lost(self) -> bool:
        """Its backend has died since."""
        return self.deaths != self.backend.deaths


class _Group:
    """Pins that live equally long without a step, least recently used first."""

    __slots__ = ("lifetime_s", "pins")

    def __init__(self, lifetime_s: float) -> None:
        self.lifetime_s = lifetime_s
        self.pins: OrderedDict[SequenceKey, Pin] = OrderedDict()


class Pin:
    """One open sequence."""

    __slots__ = ("_group", "_share", "starts", "steps", "used_at", "way")

    def __init__(self, group: _Group, share: _Share) -> None:
        self._group = group
        self._share = share
        self.starts = 0
        """STARTs of this key since it was pinned: an END frees what its own START began."""
        self.steps = 0
        """Its attempts under way."""
        self.used_at = 0.0
        """When a step last began or ended."""
        self.way: object | None = None
        """What its last step went over, for whoever has to keep steps in order."""

    @property
    def backend(self) -> Backend:
        """Where it runs."""
        return self._share.backend


@dataclass(frozen=True, slots=True)
class OpenSequences:
    """How many sequences of a model run on a backend."""

    backend: Backend
    model: bytes
    count: int


class SequenceTable:
    """All open sequences. One per process; every method but `sweep` is O(backends) or better."""

    def __init__(self, *, limit: int, affinity: Affinity = Affinity.LEAST_OPEN) -> None:
        """Remember at most `limit` sequences; beyond that the one idle for longest is dropped."""
        self._limit = limit
        self._affinity = affinity
        self._groups: dict[float, _Group] = {}
        self._models: dict[bytes, _Model] = {}
        self._count = 0
        self._turn = 0
        self.started = 0
        self.lost = 0
        """Sequences whose backend died, as far as another step of them came."""
        self.expired = 0
        """Ended by silence."""
        self.dropped = 0
        """Forgotten although they may run, because there were too many."""

    def __len__(self) -> int:
        return self._count

    # Steps

    def place(
        self,
        step: SequenceStep,
        placement: Placement,
        idle_s: float,
        now: float,
        tried: tuple[Backend, ...] = (),
    ) -> tuple[Backend | None, Pin | None]:
        """Choose the backend of a step, and count the step as under way if it is pinned.

        Args:
            step: what the request says.
            placement: who may get new requests for its model.
            idle_s: how long its model remembers an idle sequence.
            now: monotonic seconds.
            tried: backends at which an attempt at this request has failed.

        Returns:
            The backend, and the pin that `ended` wants to have back. No pin: nobody started it
            here. No backend: any will do, for its own word about that; or, for a START, none
            has room.

        Raises:
            RequestRefused: the sequence is lost.
        """
        group = self._group(idle_s * IDLE_FACTOR)
        self._expire(group, now, _EXPIRED_PER_STEP)
        pin = self._find(step.key, group, now)
        if pin is not None and pin._share.is_lost:
            self.lost += 1
            self._close(step.key, pin)
            if not step.is_start:
                raise RequestRefused(Reason.SEQUENCE_LOST, lost_text(step.key, pin.backend))
            pin = None
        if pin is None:
            if not step.is_start and self._affinity is Affinity.LEAST_OPEN:
                return None, None
            backend = self._choose(step.key, placement, tried)
            if backend is None or not step.is_start:
                return backend, None
            pin = self._open(step.key, group, backend)
        if step.is_start:
            pin.starts += 1
            self.started += 1
        pin.steps += 1
        pin.used_at = now
        group.pins.move_to_end(step.key)
        return pin.backend, pin

    def ended(
        self, step: SequenceStep, pin: Pin, starts: int, now: float, *, surely_not_run: bool = False
    ) -> None:
        """An attempt at a step is over, however it ended.

        Args:
            step: as it was placed.
            pin: that it got.
            starts: `pin.starts` right after it was placed.
            now: monotonic seconds.
            surely_not_run: the backend certainly did nothing: no sequence began, or ended.
        """
        pin.steps -= 1
        pin.used_at = now
        pins = pin._group.pins
        if pins.get(step.key) is not pin:
            return
        is_over = step.is_start if surely_not_run else step.is_end
        if is_over and pin.starts == starts:
            self._close(step.key, pin)
        else:
            pins.move_to_end(step.key)

    def backend_of(self, key: SequenceKey) -> Backend | None:
        """Where a sequence runs; None where nobody started it, or it is lost."""
        for group in self._groups.values():
            pin = group.pins.get(key)
            if pin is not None:
                return None if pin._share.is_lost else pin.backend
        return None

    def sweep(self, now: float, limit: int) -> None:
        """Forget up to `limit` expired sequences of each lifetime; due about every second."""
        for group in self._groups.values():
            self._expire(group, now, limit)

    def open_sequences(self) -> Iterator[OpenSequences]:
        """What runs where, by model."""
        for model in self._models.values():
            for share in model.shares.values():
                if share.open and not share.is_lost:
                    yield OpenSequences(share.backend, model.name, share.open)

    # Choice

    def _choose(
        self, key: SequenceKey, placement: Placement, tried: tuple[Backend, ...]
    ) -> Backend | None:
        free = [backend for backend in placement.eligible if backend.has_room]
        candidates = [backend for backend in free if backend not in tried] or free
        if not candidates:
            return None
        if self._affinity is Affinity.RENDEZVOUS:
            name = _hashable(key)
            return max(candidates, key=lambda backend: _affinity_score(name, backend))
        model = self._models.get(key.model)
        shares = model.shares if model is not None else {}

        def rank(backend: Backend) -> tuple[float, float, int]:
            share = shares.get(backend)
            running = 0 if share is None or share.is_lost else share.open
            per_weight = backend.inverse_weight
            return (
                (running + 1) * per_weight,
                (backend.in_flight + 1) * per_weight,
                backend.last_sequence,
            )

        return min(candidates, key=rank)

    # Pins

    def _group(self, lifetime_s: float) -> _Group:
        group = self._groups.get(lifetime_s)
        if group is None:
            group = self._groups[lifetime_s] = _Group(lifetime_s)
        return group

    def _find(self, key: SequenceKey, group: _Group, now: float) -> Pin | None:
        """The pin of a key, brought into `group` if it was found in another."""
        pin = group.pins.get(key)
        if pin is None:
            for other in self._groups.values():
                pin = other.pins.pop(key, None)
                if pin is not None:
                    pin._group = group
                    group.pins[key] = pin
                    break
            else:
                return None
        if pin.steps or pin.used_at + group.lifetime_s > now:
            return pin
        self.expired += 1
        self._close(key, pin)
        return None

    def _open(self, key: SequenceKey, group: _Group, backend: Backend) -> Pin:
        if self._count >= self._limit:
            self._make_room()
        model = self._models.get(key.model)
        if model is None:
            model = self._models[key.model] = _Model(key.model)
        share = model.shares.get(backend)
        if share is None or share.is_lost:
            share = model.shares[backend] = _Share(model, backend)
        model.open += 1
        share.open += 1
        backend.open_sequences += 1
        self._count += 1
        self._turn += 1
        backend.last_sequence = self._turn
        # All keys of a model share the bytes of its name.
        pin = group.pins[SequenceKey(model.name, key.id)] = Pin(group, share)
        return pin

    def _close(self, key: SequenceKey, pin: Pin) -> None:
        del pin._group.pins[key]
        self._count -= 1
        share = pin._share
        share.open -= 1
        if not share.is_lost:
            share.backend.open_sequences -= 1
        model = share.model
        model.open -= 1
        if not share.open and model.shares.get(share.backend) is share:
            del model.shares[share.backend]
        if not model.open:
            del self._models[model.name]

    def _expire(self, group: _Group, now: float, limit: int) -> None:
        pins = group.pins
        for _ in range(limit):
            if not pins:
                return
            key = next(iter(pins))
            pin = pins[key]
            if pin.used_at + group.lifetime_s > now:
                return
            if pin.steps:
                pin.used_at = now  # a long step is no silence
                pins.move_to_end(key)
            else:
                self.expired += 1
                self._close(key, pin)

    def _make_room(self) -> None:
        """Forget the sequence without a step under way that was idle for longest."""
        for _ in range(_EVICTION_TRIES):
            heads = (
                next(iter(group.pins.items())) for group in self._groups.values() if group.pins
            )
            key, pin = min(heads, key=lambda head: head[1].used_at)
            if not pin.steps:
                self.dropped += 1
                self._close(key, pin)
                return
            pin._group.pins.move_to_end(key)


def lost_text(key: SequenceKey, backend: Backend) -> str:
    """What to tell a client whose sequence is gone with its backend."""
    return f"{sequence_text(key)} is lost: its backend {backend.name} has gone; start it again"


def sequence_text(key: SequenceKey) -> str:
    """A sequence in words; texts in quotation marks, because 77 and "77" are two."""
    name = f'"{key.id}"' if isinstance(key.id, str) else key.id
    return f"sequence {name} of model {key.model.decode('utf-8', 'replace')}"


# Rendezvous hashing: every replica computes the same score for each backend, and the highest wins;
# a backend that comes or goes moves only what it gets or had (Thaler, Ravishankar: "Using
# name-based mappings to increase hit rates", 1998). Weights: Schindelhauer, Schomaker: "Weighted
# distributed hash tables", 2005.


def _hashable(key: SequenceKey) -> bytes:
    kind = b"s" if isinstance(key.id, str) else b"i"
    return kind + str(key.id).encode("utf-8", "surrogateescape") + b"\0" + key.model + b"\0"


def _affinity_score(name: bytes, backend: Backend) -> float:
    digest = blake2b(name + backend.name.encode(), digest_size=8).digest()
    share = (int.from_bytes(digest, "big") + 0.5) / 2.0**64
    return -backend.spec.weight / log(share) if share < 1.0 else float("inf")
