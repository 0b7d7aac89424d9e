"""Names that several models, or versions of one, serve: which of these variants gets a request.

A name's weights come from the file. What changes them while the process runs (an operator, a ramp,
a rollback) holds until the variants in the file change, and passes to a successor. A variant that
no backend has ready gets nothing; its requests go to the first variant.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any, Final, Protocol

from lb.access.gate import Credentials, Gate
from lb.balancing.variants import WeightedChoice, with_shares
from lb.domain.backend import LATENCY_BOUNDS_S, AppProtocol, Histogram
from lb.domain.client import Client
from lb.domain.errors import RequestRefused
from lb.domain.names import to_bytes, to_text
from lb.domain.outcome import Reason
from lb.domain.pool import PoolRef, PoolSnapshot
from lb.domain.sequence import SequenceKey, SequenceStep
from lb.domain.server_errors import is_service_error
from lb.health.rollback import Baseline, Counts, VariantJudge
from lb.net.timers import TimerWheel
from lb.proxy.exchange import Exchange, RoutingHints
from lb.proxy.failure import grpc_status, http_status
from lb.settings.model import Settings
from lb.settings.scheduling import ModelSettings
from lb.settings.values import field_name
from lb.telemetry.variants import VariantStatus
from lb.wire.grpc.status import GrpcStatus

_log = logging.getLogger(__name__)

PIN: Final = b"x-triton-lb-variant"
"""The header by which a client that may do so chooses a variant itself."""
TARGET_VARIANT: Final = b"x-amzn-sagemaker-target-variant"
"""The field with the variant on the port for SageMaker."""
_SEQUENCES: Final = 1_000_000
"""Open sequences of a name whose variant is remembered."""
_IDLE_S: Final = 600.0
"""After so long without a step a sequence is forgotten that nobody ended."""
_LOOK_S: Final = 1.0
_GOLDEN: Final = 0.6180339887498949
"""Multiples of the golden ratio, without their whole part, are spread evenly at any time: requests
that nothing tells apart follow the weights more closely than random draws would."""
_HEADER: Final = "header:"
_NOT_ITS_OWN: Final = frozenset({
    Reason.BAD_REQUEST, Reason.BODY_TOO_LARGE, Reason.CLIENT_STALLED, Reason.FORBIDDEN,
    Reason.MEMORY, Reason.SEQUENCE_ID,
})  # fmt: skip
"""Reasons that a client, or we ourselves, are to blame for."""
_GIVEN_UP: Final = frozenset({Reason.CLIENT_GONE, Reason.DEADLINE})
"""Reasons for which nobody waits for an answer any longer."""
_GOOD_HTTP: Final = range(200, 300)
_MAY_NOT: Final = "this client may not choose a variant; see access.control"


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRules:
    """What is configured of one variant."""

    name: str
    model: bytes
    version: bytes = b""
    weight: float = 0.0
    match: tuple[bytes, bytes] | None = None
    """Name, in lower case, and value of a header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRules:
    """What is configured of one name."""

    variants: tuple[VariantRules, ...]
    header: bytes = b""
    """In lower case: clients are told apart by its value."""
    by_tenant: bool = False
    ramp: tuple[float | None, float, float] | None = None
    """Percent at its beginning (None: as the weights say) and at its end, and seconds."""
    rollback: tuple[float | None, float | None, int] | None = None
    """Factors of errors and p99, and the requests before anything is judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantOptions:
    """What a reload may change."""

    names: Mapping[bytes, NameRules]
    tenant_header: bytes = b""


def variant_options(settings: Settings) -> VariantOptions:
    """Read from settings which names have variants."""
    names = {name.encode(): _rules(own) for name, own in settings.models.items() if own.variants}
    return VariantOptions(names=names, tenant_header=field_name(settings.scheduling.tenant_header))


def _rules(own: ModelSettings) -> NameRules:
    ramp, rollback = own.ramp, own.rollback
    header = own.sticky.removeprefix(_HEADER) if own.sticky.startswith(_HEADER) else None
    return NameRules(
        variants=tuple(
            VariantRules(
                name=each.name,
                model=each.model.encode(),
                version=(each.version or "").encode(),
                weight=each.weight,
                match=(field_name(each.match.header), each.match.value.encode())
                if each.match is not None
                else None,
            )
            for each in own.variants
        ),
        header=field_name(header),
        by_tenant=own.sticky == "tenant",
        ramp=(ramp.from_, ramp.to, ramp.over) if ramp is not None else None,
        rollback=(rollback.errors, rollback.p99, rollback.min_requests)
        if rollback is not None
        else None,
    )


def variant_fields(settings: Settings) -> frozenset[bytes]:
    """Return the headers, in lower case, that the choice of a variant goes by."""
    options = variant_options(settings)
    fields = set()
    for rules in options.names.values():
        fields |= {PIN, TARGET_VARIANT, rules.header}
        fields |= {each.match[0] for each in rules.variants if each.match is not None}
        if rules.by_tenant:
            fields.add(options.tenant_header)
    return frozenset(fields - {b""})


def pinned_by(
    exchange: Exchange, gate: Gate, credentials: Credentials | None, client: Client | None
) -> bytes:
    """Find the variant that the client of a request names; empty where it names none.

    Args:
        exchange: the request.
        gate: says who may name one.
        credentials: of its head.
        client: at the other end of its connection; None once that is gone.

    Raises:
        RequestRefused: this one may not.
    """
    pinned = exchange.hint(PIN)
    if pinned and (client is None or not gate.may_control(credentials, client)):
        raise RequestRefused(Reason.FORBIDDEN, _MAY_NOT)
    return pinned


class Variant:
    """One variant, and what its requests came to."""

    __slots__ = (
        "answers", "durations", "errors", "has_served", "judge", "label", "recent", "rules",
    )  # fmt: skip

    def __init__(self, name: bytes, rules: VariantRules) -> None:
        self.rules = rules
        self.label = f"{name.decode('utf-8', 'backslashreplace')}/{rules.name}"
        """Name and variant, for the access log."""
        self.answers = 0
        """Requests that were answered, well or not; without those whose clients left."""
        self.errors = 0
        """Requests among them that failed, other than by their clients' fault."""
        self.durations = Histogram()
        """Durations of good answers, from the end of the request to the end of the answer."""
        self.recent = Counts()
        """Since the last look, where somebody judges."""
        self.judge: VariantJudge | None = None
        """None: it is not judged, nor is another one by it."""
        self.has_served = False
        """It has answered well since its share was set."""

    def ended(
        self, exchange: Exchange, reason: Reason | None, due: float, now: float
    ) -> float | None:
        """Count a unary inference that this variant served.

        Args:
            exchange: the inference, which is over.
            reason: why we ended it; None where it has the answer of its backend.
            due: when the deadline of its client passes, in monotonic seconds.
            now: monotonic seconds.

        Returns:
            How long it took if it was answered well.
        """
        is_grpc = exchange.protocol is AppProtocol.GRPC
        code = exchange.grpc_status if is_grpc else exchange.status
        code_of = grpc_status if is_grpc else http_status
        took_s = exchange.took_s(now)
        if reason is None and code == code_of(Reason.DEADLINE) and now >= due:
            # The backend knows the deadline, too, and noticed it first.
            self.given_up(took_s, is_answered=True)
            return None
        if reason in _GIVEN_UP:
            waited_s = 0.0 if exchange.first_byte_at else took_s
            self.given_up(waited_s, is_answered=reason is Reason.DEADLINE)
            return None
        is_answered = code >= GrpcStatus.OK if is_grpc else code > 0
        was_cancelled = reason is None and code == code_of(Reason.CLIENT_GONE)
        if not is_answered or was_cancelled or reason in _NOT_ITS_OWN:
            return None
        is_good = reason is None and (code == GrpcStatus.OK if is_grpc else code in _GOOD_HTTP)
        is_error = reason is not None or is_service_error(exchange.protocol, code)
        self.count(took_s if is_good else None, is_error=is_error)
        return took_s if is_good else None

    def count(self, took_s: float | None, *, is_error: bool) -> None:
        """A request was answered. It took so long since its client had sent it, if that is
        known."""
        self.answers += 1
        self.errors += is_error
        if took_s is not None and not is_error:
            self.durations.sum += took_s
            self.durations.counts[bisect_left(LATENCY_BOUNDS_S, took_s)] += 1
        if self.judge is not None:
            self.recent.add(took_s, is_error=is_error)

    def given_up(self, waited_s: float, *, is_answered: bool) -> None:
        """A client does not wait any longer.

        Args:
            waited_s: how long it waited for an answer to begin, since it had sent its request; 0.0
                where an answer had begun.
            is_answered: it is told so, since its deadline has passed.
        """
        self.answers += is_answered
        self.errors += is_answered
        if self.judge is not None:
            self.recent.waits.append(waited_s)


class VariantHolder(Protocol):
    """Who has a request served by a variant."""

    def leave(self) -> bool:
        """See `Exchange.leave_variant`."""
        ...

    def keep_ready(self) -> None:
        """The request is placed next: have it served by a variant that is ready."""
        ...


class VariantHints(RoutingHints):
    """The hints of a request that a variant serves."""

    __slots__ = ("_label", "holder")

    def __init__(
        self, label: str, version: bytes, rows: int, priority: int, holder: VariantHolder
    ) -> None:
        super().__init__(version, rows, priority)
        self._label = label
        self.holder: VariantHolder | None = holder
        """Has another variant serve it where this one is not ready any more; None once it is
        answered."""

    @property
    def variant(self) -> str:
        """See `RoutingHints`."""
        return self._label


class _Steps:
    """Which variant serves a sequence, until that ends."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: OrderedDict[int | str, tuple[Variant, float]] = OrderedDict()
        """By the id; the one with the oldest last step first. A plain dictionary would look at all
        that have left its front to find that."""

    def find(self, step: SequenceStep) -> Variant | None:
        """The variant of a sequence; None where it is not known."""
        known = self._known.get(step.key.id)
        return None if known is None else known[0]

    def note(self, step: SequenceStep, variant: Variant, now: float) -> None:
        """A step goes to a variant."""
        known = self._known
        known.pop(step.key.id, None)
        if not step.is_end:
            known[step.key.id] = (variant, now)
        while known:
            oldest = next(iter(known))
            if len(known) <= _SEQUENCES and now - known[oldest][1] < _IDLE_S:
                break
            del known[oldest]


class VariantSet:
    """The variants of one name as they are now."""

    def __init__(self, name: bytes, rules: NameRules, now: float) -> None:
        self.name = name
        self.rules = rules
        self.variants = [Variant(name, each) for each in rules.variants]
        """The first one is the stable one: it is what others are judged by, and where requests go
        whose variant is not ready."""
        self.changed = ""
        """What has changed the weights since the file was read; empty: nothing has."""
        self.why = ""
        """Why the last rollback was made."""
        self.rollbacks: dict[tuple[str, str], int] = {}
        """Counter by variant and cause."""
        self.steps = _Steps()
        self.begins_at = now
        """When the ramp began."""
        self.ramps = rules.ramp is not None
        """The ramp is under way."""
        self._ramp_s = 0.0
        """How long it had been under way when shares changed by it last."""
        self._drawn = 0.0
        self._baseline = Baseline()
        self._judged = 0
        """Requests since the weights changed last, up to those that are needed."""
        self.use([each.weight for each in rules.variants])
        if rules.ramp is not None and rules.ramp[0] is not None:
            self._go_on_with_ramp(now)

    def take(self, rules: NameRules, now: float) -> None:
        """Go by other rules of the same variants from now on. Shares, counters and open sequences
        stay; a new ramp begins unless somebody has decided on the shares."""
        before, self.rules = self.rules, rules
        if rules.rollback != before.rollback:
            self.renew_judges()
        if rules.ramp != before.ramp and self.changed in ("", "ramp"):
            self.begins_at = now
            self.ramps = rules.ramp is not None
            self._go_on_with_ramp(now)

    def use(self, weights: Sequence[float]) -> None:
        """Choose by other weights from now on."""
        total = fsum(weights) or 1.0
        self.percents = [100.0 * each / total for each in weights]
        self._choice = WeightedChoice([each.rules.name for each in self.variants], weights)

    def renew_judges(self) -> None:
        """Judge everything anew: somebody has decided otherwise."""
        rollback = self.rules.rollback
        self._judged = 0
        self._baseline = Baseline()
        for variant in self.variants:
            variant.recent = Counts()
            variant.has_served = False
            variant.judge = VariantJudge(*rollback[:2]) if rollback is not None else None

    def choose(
        self,
        hint: Callable[[bytes], bytes],
        tenant: bytes,
        step: SequenceStep | None,
        pinned: bytes,
        is_ready: Callable[[VariantRules], bool],
        is_open: Callable[[SequenceKey], bool],
        now: float,
    ) -> Variant:
        """Choose the variant of a request.

        Args:
            hint: returns the value of a header.
            tenant: whose request it is; empty where nobody asks.
            step: of a sequence that it is.
            pinned: the variant that its client names; empty: none.
            is_ready: whether some backend serves a variant.
            is_open: whether a sequence of a model runs on some backend.
            now: monotonic seconds.

        Raises:
            RequestRefused: there is no such variant.
        """
        chosen = None
        if step is not None and not step.is_start:
            chosen = self.steps.find(step) or self._home(step, is_open)
        if chosen is None:
            chosen = self._pinned(pinned) if pinned else self._weighed(hint, tenant, step)
            if not is_ready(chosen.rules):
                chosen = next(
                    (each for each in self.variants if is_ready(each.rules)), self.variants[0]
                )
        if step is not None:
            self.steps.note(step, chosen, now)
        return chosen

    def _home(self, step: SequenceStep, is_open: Callable[[SequenceKey], bool]) -> Variant | None:
        """The variant of a sequence that began in the process before, or by the model's name."""
        for each in self.variants:
            if is_open(SequenceKey(each.rules.model, step.key.id)):
                return each
        return None

    def _pinned(self, name: bytes) -> Variant:
        for each in self.variants:
            if each.rules.name.encode() == name:
                return each
        names = ", ".join(each.rules.name for each in self.variants)
        text = f"there is no such variant; there are: {names}"
        raise RequestRefused(Reason.BAD_REQUEST, text)

    def _weighed(
        self, hint: Callable[[bytes], bytes], tenant: bytes, step: SequenceStep | None
    ) -> Variant:
        for each in self.variants:
            match = each.rules.match
            if match is not None and hint(match[0]) == match[1]:
                return each
        rules = self.rules
        key = tenant if rules.by_tenant else hint(rules.header) if rules.header else b""
        if not key and step is not None:
            key = repr(step.key.id).encode()
        if key:
            return self.variants[self._choice.by_key(key)]
        self._drawn = (self._drawn + _GOLDEN) % 1.0
        return self.variants[self._choice.by_draw(self._drawn)]

    # Ramp and rollback

    def check(self, now: float, is_ready: Callable[[VariantRules], bool]) -> bool:
        """Go on with the ramp, and judge. Whether a variant was rolled back."""
        self._go_on_with_ramp(now)
        return self.rules.rollback is not None and self._judge(*self.rules.rollback[1:], is_ready)

    def _go_on_with_ramp(self, now: float) -> None:
        if not self.ramps or self.rules.ramp is None:
            return
        begun, to, over_s = self.rules.ramp
        if begun is None:
            begun = self._share_in_file()
        self._ramp_s = now - self.begins_at
        part = min(1.0, self._ramp_s / over_s)
        share = begun + (to - begun) * part
        last = len(self.variants) - 1
        percents = [None if index < last else share for index in range(last + 1)]
        self.use(with_shares(self.percents, percents))
        self.changed = "ramp"
        self.ramps = part < 1.0

    def _share_in_file(self) -> float:
        weights = [each.weight for each in self.rules.variants]
        return 100.0 * weights[-1] / (fsum(weights) or 1.0)

    def _judge(
        self, p99: float | None, least: int, is_ready: Callable[[VariantRules], bool]
    ) -> bool:
        first = self.variants[0]
        counts = {each.rules.name: each.recent for each in self.variants}
        patience_s = (p99 or 1.0) * self._baseline.patience_s
        for each in self.variants:
            each.recent.judge_waits(patience_s)
            each.recent = Counts()
        self._judged = min(least, self._judged + sum(each.requests for each in counts.values()))
        baseline = counts[first.rules.name]
        self._baseline.add(baseline)
        is_first_ready = False
        for index, each in enumerate(self.variants):
            ready = is_ready(each.rules)
            if each is first:
                is_first_ready = ready
                continue
            recent = counts[each.rules.name]
            each.has_served = each.has_served or recent.requests > recent.errors
            if not self.percents[index]:
                continue
            if each.has_served and not ready and is_first_ready:
                self._roll_back(index, "dead", "no backend has it ready any more")
                return True
            if self._judged < least or each.judge is None:
                continue
            why = each.judge.verdict(recent, baseline, self._baseline)
            if why:
                self._roll_back(index, "errors" if "failed" in why else "p99", why)
                return True
        return False

    def _roll_back(self, index: int, cause: str, why: str) -> None:
        name = self.variants[index].rules.name
        percents = [0.0 if each == index else None for each in range(len(self.variants))]
        self.use(with_shares(self.percents, percents))
        self.ramps = False
        self.changed = "rollback"
        self.why = f"{name}: {why}"
        self.rollbacks[name, cause] = self.rollbacks.get((name, cause), 0) + 1
        self.renew_judges()
        fields = {"model": self.name.decode("utf-8", "backslashreplace"), "variant": name}
        _log.error(f"variant rolled back: {why}", extra=fields)

    # What operators say

    def set_shares(self, percents: Mapping[str, float]) -> None:
        """Give some variants other shares.

        Args:
            percents: by the variant's name; the others share what is left.

        Raises:
            ValueError: there is no such variant, or the shares cannot be.
        """
        self._check(percents)
        given = [percents.get(each.rules.name) for each in self.variants]
        self.use(with_shares(self.percents, given))
        self._changed("operator")

    def promote(self, name: str) -> None:
        """Make a variant the first one, which gets everything.

        Raises:
            ValueError: there is no such variant.
        """
        self._check((name,))
        self.variants.sort(key=lambda each: each.rules.name != name)
        self.use([100.0, *[0.0] * (len(self.variants) - 1)])
        self._changed("operator")

    def _changed(self, by: str) -> None:
        self.ramps = False
        self.changed, self.why = by, ""
        self.renew_judges()

    def _check(self, names: Iterable[str]) -> None:
        known = [each.rules.name for each in self.variants]
        for name in names:
            if name not in known:
                raise ValueError(f"there is no variant {name!r}; there are: {', '.join(known)}")

    # What a successor is told

    def export(self) -> dict[str, Any]:
        """Return what exists nowhere else, as JSON has it. It changes with the shares only."""
        return {
            "percents": {
                each.rules.name: share
                for each, share in zip(self.variants, self.percents, strict=True)
            },
            "changed": self.changed,
            "why": self.why,
            "ramp_s": self._ramp_s if self.ramps else None,
        }

    def resume(self, state: Mapping[str, Any], now: float) -> None:
        """Take over what `export` returned to another process, and go on from there; nothing where
        shares were as that one's file said, or of other variants."""
        if not state.get("changed") or not self.follow(state):
            return
        ramp_s = state.get("ramp_s")
        self.ramps = ramp_s is not None and self.rules.ramp is not None
        if ramp_s is not None:
            self.begins_at, self._ramp_s = now - ramp_s, ramp_s

    def follow(self, state: Mapping[str, Any]) -> bool:
        """Have the shares that `export` returned to a process with the same file, which judges and
        goes on with the ramp. False where it was of other variants."""
        percents = state.get("percents", {})
        if percents.keys() != {each.rules.name for each in self.variants}:
            return False
        order = list(percents)
        self.variants.sort(key=lambda each: order.index(each.rules.name))
        self.use([percents[each.rules.name] for each in self.variants])
        self.changed, self.why = str(state.get("changed", "")), str(state.get("why", ""))
        return True

    # Requests of other processes

    def take_recent(self) -> dict[str, list[Any]]:
        """Return what came since the last call of what is judged, by the variant's name."""
        rows = {}
        for each in self.variants:
            if not each.recent.is_empty:
                rows[each.rules.name] = each.recent.export()
                each.recent = Counts()
        return rows

    def add_recent(self, rows: Mapping[str, list[Any]]) -> None:
        """Judge by what `take_recent` returned to another process, too."""
        for each in self.variants:
            if each.judge is not None and each.rules.name in rows:
                each.recent.add_exported(*rows[each.rules.name])


def _nothing_is_open(_key: SequenceKey) -> bool:
    """There is no table of sequences."""
    return False


def _may_serve(snapshot: PoolSnapshot, rules: VariantRules, protocol: AppProtocol) -> bool:
    """Whether a variant may get requests: some backend has it ready, or it is loaded for them."""
    if snapshot.is_served(rules.model, rules.version, protocol) is not False:
        return True
    route = snapshot.routes.get(rules.model)
    return route is not None and route.on_demand is not None and not route.on_demand.error


class VariantChoice:
    """The variant of one inference, which changes while no backend has it ready any more.

    The first one that is ready follows. A request goes back to no variant that it has left, so it
    changes no more often than there are variants.
    """

    __slots__ = ("_book", "_is_leaving", "_left", "_protocol", "_set", "_step", "variant")

    def __init__(
        self,
        book: VariantBook,
        split: VariantSet,
        variant: Variant,
        protocol: AppProtocol,
        step: SequenceStep | None,
    ) -> None:
        """
        Args:
            book: says which variants are ready.
            split: the variants of its name.
            variant: the first one that serves it.
            protocol: it came over.
            step: the START of a sequence that it is.
        """
        self._book = book
        self._set = split
        self.variant = variant
        self._protocol = protocol
        self._step = step
        self._left = [variant]
        """Variants that serve it, or did."""
        self._is_leaving = False

    def leave(self) -> bool:
        """See `Exchange.leave_variant`."""
        self._is_leaving = self._other() is not None
        return self._is_leaving

    def follow(self) -> bool:
        """Change the variant if this one is left, or no backend has it ready. Whether it did."""
        book = self._book
        if not self._is_leaving and book.may_serve(self.variant, self._protocol):
            return False
        self._is_leaving = False
        other = self._other()
        if other is None:
            return False
        self.variant = other
        self._left.append(other)
        if self._step is not None:
            self._set.steps.note(self._step, other, book.clock())
        return True

    def _other(self) -> Variant | None:
        for each in self._set.variants:
            if each not in self._left and self._book.may_serve(each, self._protocol):
                return each
        return None


class VariantBook:
    """All names with variants. To be used from one event loop."""

    def __init__(
        self,
        pool: PoolRef,
        clock: Callable[[], float],
        is_open: Callable[[SequenceKey], bool] = _nothing_is_open,
    ) -> None:
        """
        Args:
            pool: the published pool.
            clock: monotonic seconds.
            is_open: whether a sequence of a model runs on some backend.
        """
        self._is_open = is_open
        self._pool = pool
        self.clock = clock
        """Monotonic seconds."""
        self._tenant_header = b""
        self.sets: dict[bytes, VariantSet] = {}
        """By the name that clients use."""

    def configure(self, options: VariantOptions) -> None:
        """Go by other options from now on. Names whose variants stay the same keep their shares
        and counters; sequences under way stay where they are."""
        self._tenant_header = options.tenant_header
        now = self.clock()
        sets = {}
        for name, rules in options.names.items():
            before = self.sets.get(name)
            if before is None or before.rules.variants != rules.variants:
                fresh = VariantSet(name, rules, now)
                fresh.renew_judges()
                if before is not None:
                    fresh.steps = before.steps
                    fresh.rollbacks = before.rollbacks
                before = fresh
            elif before.rules != rules:
                before.take(rules, now)
            sets[name] = before
        self.sets = sets

    def keep(self, timers: TimerWheel) -> None:
        """Go on with ramps, and judge, once a second."""
        timers.every(_LOOK_S, self.check)

    def check(self) -> None:
        """Go on with ramps, and judge."""
        now = self.clock()
        for each in self.sets.values():
            each.check(now, self._is_ready)

    def __contains__(self, model: object) -> bool:
        """Whether a name has variants."""
        return model in self.sets

    def choose(
        self,
        split: VariantSet,
        protocol: AppProtocol,
        hint: Callable[[bytes], bytes],
        token: str,
        step: SequenceStep | None,
        pinned: bytes,
    ) -> Variant:
        """Choose the variant of a request; see `VariantSet.choose`.

        Raises:
            RequestRefused: its client names one that does not exist.
        """
        tenant = b""
        if split.rules.by_tenant:
            tenant = token.encode() or hint(self._tenant_header)
        snapshot, now = self._pool.current, self.clock()
        return split.choose(
            hint,
            tenant,
            step,
            pinned,
            lambda rules: _may_serve(snapshot, rules, protocol),
            self._is_open,
            now,
        )

    def choice(
        self,
        split: VariantSet,
        variant: Variant,
        protocol: AppProtocol,
        step: SequenceStep | None,
        pinned: bytes,
    ) -> VariantChoice | None:
        """The variant of an inference as it may change; None where it must not: its client names
        the variant, or its sequence is open there."""
        if pinned or (step is not None and not step.is_start):
            return None
        return VariantChoice(self, split, variant, protocol, step)

    def may_serve(self, variant: Variant, protocol: AppProtocol) -> bool:
        """Whether a variant may get requests: some backend has it ready, or it is loaded for
        them."""
        return _may_serve(self._pool.current, variant.rules, protocol)

    def is_ready(self, name: bytes, protocol: AppProtocol) -> bool:
        """Whether some backend has a variant of a name ready."""
        snapshot = self._pool.current
        return any(
            snapshot.is_served(each.rules.model, each.rules.version, protocol) is not False
            for each in self.sets[name].variants
        )

    def models_of(self, name: bytes) -> Sequence[tuple[bytes, bytes]]:
        """Model and version of the variants of a name; none where it has no variants, or is a
        model itself."""
        split = self.sets.get(name)
        if split is None or name in self._pool.current.routes:
            return ()
        models = [(each.rules.model, each.rules.version) for each in split.variants]
        return () if any(model == name for model, _ in models) else models

    def _is_ready(self, rules: VariantRules) -> bool:
        """Whether a variant may get requests, over any protocol."""
        snapshot = self._pool.current
        return any(_may_serve(snapshot, rules, each) for each in AppProtocol)

    # What operators say

    def find(self, name: str) -> VariantSet:
        """The variants of a name.

        Raises:
            LookupError: it has none.
        """
        found = self.sets.get(name.encode())
        if found is None:
            raise LookupError(f"{name!r} has no variants")
        return found

    def promote(self, split: VariantSet, name: str) -> None:
        """Make a variant the first one, which gets everything.

        Raises:
            ValueError: there is no such variant, or no backend has it ready.
        """
        for each in split.variants:
            if each.rules.name == name and not self._is_ready(each.rules):
                raise ValueError(f"no backend has {name!r} ready")
        split.promote(name)

    def reset(self, name: str) -> VariantSet:
        """Go by the file again; a ramp begins anew.

        Raises:
            LookupError: the name has no variants.
        """
        before = self.find(name)
        fresh = VariantSet(before.name, before.rules, self.clock())
        fresh.steps, fresh.rollbacks = before.steps, before.rollbacks
        known = {each.rules.name: each for each in before.variants}
        fresh.variants = [known[each.name] for each in before.rules.variants]
        fresh.renew_judges()
        self.sets[before.name] = fresh
        return fresh

    def statuses(self) -> Iterable[VariantStatus]:
        """All variants of all names as they are now."""
        return [status for each in self.sets.values() for status in self.statuses_of(each)]

    def statuses_of(self, split: VariantSet) -> Iterable[VariantStatus]:
        """The variants of a name as they are now, the first one first."""
        in_file = {each.name: each.weight for each in split.rules.variants}
        total = fsum(in_file.values()) or 1.0
        for index, each in enumerate(split.variants):
            rules = each.rules
            yield VariantStatus(
                name=split.name.decode("utf-8", "backslashreplace"),
                variant=rules.name,
                model=rules.model.decode("utf-8", "backslashreplace"),
                version=rules.version.decode(),
                percent=split.percents[index],
                file_percent=100.0 * in_file[rules.name] / total,
                is_ready=self._is_ready(rules),
                answers=each.answers,
                errors=each.errors,
                durations=each.durations,
                changed=split.changed,
                why=split.why,
                rollbacks={
                    cause: count
                    for (name, cause), count in split.rollbacks.items()
                    if name == rules.name
                },
            )

    def export(self) -> dict[str, Any]:
        """Return what was said and decided while the process ran, as JSON has it."""
        return {to_text(name): each.export() for name, each in self.sets.items()}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Take over what another process exported."""
        now = self.clock()
        for name, each in state.items():
            if (found := self.sets.get(to_bytes(name))) is not None:
                found.resume(each, now)

    # Several processes that serve the same names, of which one judges and goes on with ramps

    def follow(self, state: Mapping[str, Any]) -> None:
        """Have the shares that the process which judges has exported."""
        for name, each in state.items():
            if (found := self.sets.get(to_bytes(name))) is not None:
                found.follow(each)

    def take_recent(self) -> dict[str, Any]:
        """Return what came since the last call of what is judged, as JSON has it."""
        rows = {to_text(name): each.take_recent() for name, each in self.sets.items()}
        return {name: each for name, each in rows.items() if each}

    def add_recent(self, rows: Mapping[str, Any]) -> None:
        """Judge by what `take_recent` returned to another process, too."""
        for name, each in rows.items():
            if (found := self.sets.get(to_bytes(name))) is not None:
                found.add_recent(each)
