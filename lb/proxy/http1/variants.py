"""Requests over HTTP for a name that variants serve: another model in the path, and the name that
was asked for in the answer.

The variant is chosen when all is known that decides where the request goes. What concerns a model
without running it (metadata, configuration) is about the first variant.
"""

from __future__ import annotations

import re
from typing import Final

from lb.domain.errors import RequestRefused
from lb.domain.operation import OperationKind
from lb.domain.sequence import SequenceKey
from lb.kserve.names import JSON_BYTES, renamed_json
from lb.kserve.operations import MODEL_GENERATE_STREAM
from lb.net.ask.client_call import Fields
from lb.payloads.log import Recording
from lb.proxy.exchange import RoutingHints
from lb.proxy.http1.exchange import Http1Exchange
from lb.proxy.http1.sides import AnswerForm, RequestHandler
from lb.proxy.shadow import head_fields
from lb.proxy.variants import (
    TARGET_VARIANT,
    Variant,
    VariantChoice,
    VariantHints,
    VariantRules,
    pinned_by,
)
from lb.wire.http1.body import Payload
from lb.wire.http1.forwarded import drop_fields
from lb.wire.http1.response import ResponseHead

_MODELS: Final = b"/v2/models/"
_COMPRESSION: Final = frozenset({b"accept-encoding"})
"""Answers must be legible."""
_LENGTHS: Final = re.compile(
    rb"(\r\n(?:content-length|inference-header-content-length):[ \t]*)([0-9]{1,19})(?![0-9])",
    re.IGNORECASE,
)
"""Longer numbers are no lengths, and what has thousands of digits cannot be read as a number."""
_JSON_LENGTH: Final = re.compile(
    rb"\r\ninference-header-content-length:[ \t]*([0-9]{1,10})", re.IGNORECASE
)
_ENCODED: Final = re.compile(rb"\r\ncontent-encoding:", re.IGNORECASE)
_EVENT: Final = b"data:"


class VariantHandler:
    """Has a request for a name served by one of its variants, and counts how that ended.
    Implements `RequestHandler`."""

    __slots__ = (
        "_by_platform", "_choice", "_exchange", "_form", "_head", "_inner", "_recording",
        "_variant", "collects",
    )  # fmt: skip

    def __init__(self, exchange: Http1Exchange, *, by_platform: bool) -> None:
        """
        Args:
            exchange: whose name has variants.
            by_platform: a hosting platform says which variant it is for.
        """
        self._exchange = exchange
        self._inner: RequestHandler | None = exchange.handler
        """Looks into the request before it goes on, where somebody does."""
        self._by_platform = by_platform
        self._variant: Variant | None = None
        self._choice: VariantChoice | None = None
        """None where the variant must not change."""
        self._form: AnswerForm | None = None
        """The form that the answer gets after its name."""
        self._head = b""
        self._recording: Recording | None = None
        """The recording of a request that is to be copied."""
        self.collects = False

    def start(self, head: bytes, pieces: list[Payload], *, ended: bool) -> None:
        """See `RequestHandler`."""
        exchange = self._exchange
        dispatcher = exchange.relay.dispatcher
        split = dispatcher.variants.sets.get(exchange.model)
        if split is not None:
            # It is looked at for what any of the variants may need.
            routes = dispatcher.pool.current.routes
            models = [each.rules.model for each in split.variants]
            exchange.model = next(
                (
                    model
                    for model in models
                    if (route := routes.get(model)) is not None and route.facts.is_stateful
                ),
                models[0],
            )
        head = drop_fields(head, _COMPRESSION)
        shadows = exchange.relay.parts.shadows
        self._head = head
        self._recording = shadows.record(exchange, exchange.plan.model, head)
        self._note(pieces)
        (self._inner or exchange).start(head, pieces, ended=ended)

    def add(self, pieces: list[Payload], *, ended: bool) -> None:
        """See `RequestHandler`."""
        self._note(pieces)
        (self._inner or self._exchange).add(pieces, ended=ended)

    def _note(self, pieces: list[Payload]) -> None:
        if self._recording is not None:
            for piece in pieces:
                self._recording.add_request(piece)

    @property
    def is_busy(self) -> bool:
        """See `RequestHandler`."""
        return self._inner is not None and self._inner.is_busy

    def prepare_placing(self) -> bool:
        """See `RequestHandler`."""
        try:
            self._choose()
        except RequestRefused as refused:
            self._exchange.refuse(refused)
            return False
        return True

    def close(self) -> None:
        """See `RequestHandler`."""
        if self._inner is not None:
            self._inner.close()
        self._count()
        hints = self._exchange.hints
        if isinstance(hints, VariantHints):
            hints.holder = None  # they point at each other

    # The variant

    def _choose(self) -> None:
        """Choose the variant, and make the request one for that.

        Raises:
            RequestRefused: its client names one that it may not have, or that does not exist.
        """
        exchange = self._exchange
        variants = exchange.relay.dispatcher.variants
        name = exchange.plan.model
        split = variants.sets.get(name)
        if split is None:  # a reload has just taken the variants away
            exchange.model = name
            return
        hints = exchange.hints
        step = hints.step if hints is not None else None
        variant = split.variants[0]
        if exchange.operation.kind is OperationKind.INFERENCE:
            pinned = self._pinned()
            protocol = exchange.protocol
            variant = variants.choose(split, protocol, exchange.hint, exchange.token, step, pinned)
            self._choice = variants.choice(split, variant, protocol, step, pinned)
        self._form = exchange.form
        self._use(variant, exchange.plan.model, hints or RoutingHints())

    def _use(self, variant: Variant, before: bytes, found: RoutingHints) -> None:
        """Have a variant serve the request.

        Args:
            variant: in question.
            before: what stands in the path as the model and its version.
            found: what is known of the request.
        """
        exchange = self._exchange
        self._variant = variant
        self._take(variant, before, found)
        name, model, operation = exchange.plan.model, variant.rules.model, exchange.operation
        exchange.form = self._form
        if model != name:
            key = b"name" if operation.kind is OperationKind.READ else b"model_name"
            is_stream = operation is MODEL_GENERATE_STREAM
            exchange.form = NamedForm(self._form, key, model, name, is_stream=is_stream)

    def leave(self) -> bool:
        """See `VariantHolder`."""
        return self._choice is not None and self._choice.leave()

    def keep_ready(self) -> None:
        """See `VariantHolder`."""
        choice, left, exchange = self._choice, self._variant, self._exchange
        if choice is None or left is None or not choice.follow():
            return
        exchange.tried = ()
        exchange.ticket = None
        self._use(choice.variant, _in_path(left.rules), exchange.hints or RoutingHints())

    def _pinned(self) -> bytes:
        """The variant that its client, or its platform, names.

        Raises:
            RequestRefused: the client may not.
        """
        exchange = self._exchange
        if self._by_platform:
            return exchange.hint(TARGET_VARIANT)
        server = exchange.server
        client = None if server is None else server.client
        gate = exchange.relay.dispatcher.gate
        return pinned_by(exchange, gate, exchange.plan.credentials, client)

    def _take(self, variant: Variant, before: bytes, found: RoutingHints) -> None:
        """Make the request one for a variant; see `_use`."""
        exchange = self._exchange
        rules = variant.rules
        plan = exchange.plan
        route = exchange.relay.dispatcher.pool.current.routes.get(rules.model)
        exchange.model = rules.model
        own = VariantHints(variant.label, rules.version, found.rows, found.priority, self)
        own.size, own.regions = found.size, found.regions
        if found.step is not None:
            own.step = found.step._replace(key=SequenceKey(rules.model, found.step.key.id))
        elif route is not None and route.plan is not None and plan.is_inference:
            own.rows = found.rows or 1
        exchange.hints = own
        start = b"%b %b" % (plan.method, _MODELS)
        exchange.body.replace_start(start + before, start + _in_path(rules))

    def _count(self) -> None:
        """The client's side is over: count it for its variant, and copy it."""
        exchange, variant = self._exchange, self._variant
        shadows = exchange.relay.parts.shadows
        if variant is None or exchange.operation.kind is not OperationKind.INFERENCE:
            shadows.forget(exchange)
            return
        now, reason = exchange.relay.clock(), exchange.reason
        took_s = variant.ended(exchange, reason, exchange.deadline, now)
        if took_s is not None:
            shadows.answered(exchange.plan.model, took_s)
        if reason is not None:
            shadows.forget(exchange)
        elif self._recording is not None:
            rules, status = variant.rules, exchange.status
            took_s = exchange.took_s(now)
            shadows.finished(exchange, rules.model, rules.version, status, took_s, self._fields)

    def _fields(self) -> Fields:
        """The fields of the request."""
        return head_fields(self._head)


def _in_path(rules: VariantRules) -> bytes:
    """The model of a variant, and its version, as they stand in a path."""
    return rules.model + (b"/versions/%b" % rules.version if rules.version else b"")


class NamedForm:
    """Puts the name that was asked for into an answer. Implements `AnswerForm`.

    The head waits until the name has come, since its lengths may change with it.
    """

    __slots__ = (
        "_delta", "_head", "_held", "_inner", "_is_stream", "_json_size", "_key", "_model", "_name",
        "changes_all",
    )  # fmt: skip

    def __init__(
        self, inner: AnswerForm | None, key: bytes, model: bytes, name: bytes, *, is_stream: bool
    ) -> None:
        """
        Args:
            inner: the form that the answer gets after this one.
            key: of the name in the JSON of the answer.
            model: the variant's.
            name: that was asked for.
            is_stream: an answer is a stream of events, each of which has the name.
        """
        self._inner = inner
        self._key = key
        self._model = model
        self._name = name
        self._is_stream = is_stream
        self.changes_all = is_stream
        self._head: ResponseHead | None = None
        """The head of an answer that is held back."""
        self._held = b""
        self._json_size = -1
        """How much of the answer is JSON; -1: all of it."""
        self._delta = 0
        """By how much the JSON became longer."""

    def take(
        self, head: ResponseHead | None, pieces: list[Payload], *, ended: bool
    ) -> tuple[ResponseHead | None, list[Payload]] | None:
        """See `AnswerForm`."""
        taken = self._named(head, pieces, ended=ended)
        if taken is None or self._inner is None:
            return taken
        return self._inner.take(taken[0], taken[1], ended=ended)

    def _named(
        self, head: ResponseHead | None, pieces: list[Payload], *, ended: bool
    ) -> tuple[ResponseHead | None, list[Payload]] | None:
        if head is not None:
            self._head, self._held, self._delta = None, b"", 0
            has_length = self._is_stream and head.length > 0
            passes = head.is_error or has_length or bool(_ENCODED.search(head.plain))
            # Another backend may answer after an error.
            self.changes_all = self._is_stream and not passes
            if passes:
                return head, pieces
            if not self._is_stream:
                found = _JSON_LENGTH.search(head.plain)
                self._json_size = int(found[1]) if found is not None else -1
                self._head = head
        if self.changes_all:
            return head, [self._events(b"".join(pieces), ended=ended)]
        if self._head is None:
            return head, pieces
        self._held += b"".join(pieces)
        text = self._held if self._json_size < 0 else self._held[: self._json_size]
        named = renamed_json(text, self._key, 1, self._to_client)
        if named is None and not ended and len(text) < JSON_BYTES and len(text) == len(self._held):
            return None
        shown = self._held
        if named is not None:
            self._delta = len(named) - len(text)
            shown = named + self._held[len(text) :]
        head, self._head, self._held = self._head, None, b""
        return head, [shown]

    def _events(self, text: bytes, *, ended: bool) -> bytes:
        """The next whole lines of a stream of events."""
        self._held += text
        if ended or len(self._held) > JSON_BYTES:
            whole, self._held = self._held, b""
        else:
            stop = self._held.rfind(b"\n") + 1
            whole, self._held = self._held[:stop], self._held[stop:]
        return b"".join(map(self._line, whole.splitlines(keepends=True)))

    def _line(self, line: bytes) -> bytes:
        if not line.startswith(_EVENT) or self._model not in line:
            return line
        named = renamed_json(line[len(_EVENT) :], self._key, 1, self._to_client)
        return line if named is None else _EVENT + named

    def _to_client(self, name: bytes) -> bytes:
        return self._name if name == self._model else name

    def rewrite(self, head: ResponseHead, message: bytes) -> tuple[int, bytes]:
        """See `AnswerForm`."""
        delta = self._delta
        if delta:
            message = _LENGTHS.sub(
                lambda match: b"%b%d" % (match[1], int(match[2]) + delta), message
            )
        return (head.status, message) if self._inner is None else self._inner.rewrite(head, message)
