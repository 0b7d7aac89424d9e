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
from lb.domain.outcome import Reason
from lb.domain.sequence import SequenceKey
from lb.kserve.names import JSON_BYTES, renamed_json
from lb.kserve.operations import MODEL_GENERATE_STREAM
from lb.proxy.exchange import Particulars
from lb.proxy.http1.exchange import Http1Exchange
from lb.proxy.http1.heads import RequestPlan
from lb.proxy.http1.shared import Http1Shared
from lb.proxy.http1.sides import AnswerForm, ClientSide, RequestHandler
from lb.proxy.variants import PIN, TARGET_VARIANT, Variant, VariantRules, is_counted
from lb.wire.http1.body import Payload
from lb.wire.http1.forwarded import drop_fields
from lb.wire.http1.response import ResponseHead

_MODELS: Final = b"/v2/models/"
_COMPRESSION: Final = frozenset({b"accept-encoding"})
"""Answers must be legible."""
_LENGTHS: Final = re.compile(
    rb"(\r\n(?:content-length|inference-header-content-length):[ \t]*)([0-9]+)", re.IGNORECASE
)
_JSON_LENGTH: Final = re.compile(
    rb"\r\ninference-header-content-length:[ \t]*([0-9]{1,10})", re.IGNORECASE
)
_ENCODED: Final = re.compile(rb"\r\ncontent-encoding:", re.IGNORECASE)
_EVENT: Final = b"data:"
_GOOD: Final = range(200, 300)
_ERRORS: Final = 500
_MAY_NOT: Final = "this client may not choose a variant; see access.control"


class VariantExchange(Http1Exchange):
    """A request for a name that has variants."""

    __slots__ = ("_is_by_platform", "_is_left", "_variant")

    def __init__(
        self, relay: Http1Shared, server: ClientSide, plan: RequestPlan, now: float
    ) -> None:
        super().__init__(relay, server, plan, now)
        self._variant: Variant | None = None
        self._is_by_platform = False
        self._is_left = False
        """Its client did not wait for the answer."""

    def let_platform_choose(self) -> None:
        """A hosting platform says which variant it is for."""
        self._is_by_platform = True

    @property
    def variant(self) -> str:
        """See `RequestRecord`."""
        return self._variant.label if self._variant is not None else ""

    def start(self, head: bytes, pieces: list[Payload], *, ended: bool) -> None:
        """See `Http1Exchange`."""
        split = self.relay.dispatcher.variants.sets.get(self.model)
        if split is not None:
            # It is looked at for what any of the variants may need.
            routes = self.relay.dispatcher.pool.current.routes
            models = [each.rules.model for each in split.variants]
            self.model = next(
                (
                    model
                    for model in models
                    if (route := routes.get(model)) is not None and route.facts.is_stateful
                ),
                models[0],
            )
        super().start(drop_fields(head, _COMPRESSION), pieces, ended=ended)

    def place(self) -> None:
        """See `Http1Exchange`."""
        if self._variant is None:
            try:
                self._choose()
            except RequestRefused as refused:
                self.refuse(refused)
                return
        super().place()

    def _choose(self) -> None:
        """Choose the variant, and make the request one for that."""
        dispatcher = self.relay.dispatcher
        name = self.plan.model
        split = dispatcher.variants.sets.get(name)
        if split is None:  # a reload has just taken the variants away
            self.model = name
            return
        particulars = self.particulars
        step = particulars.step if particulars is not None else None
        if self.operation.kind is OperationKind.INFERENCE:
            variant = dispatcher.variants.choose(
                split, self.protocol, self.hint, self.token, step, self._pinned()
            )
        else:
            variant = split.variants[0]
        self._variant = variant
        self._take(variant.rules, particulars)
        if variant.rules.model != name:
            key = b"name" if self.operation.kind is OperationKind.READ else b"model_name"
            is_stream = self.operation is MODEL_GENERATE_STREAM
            self.form = NamedForm(self.form, key, variant.rules.model, name, is_stream=is_stream)

    def _pinned(self) -> bytes:
        """The variant that its client, or its platform, names.

        Raises:
            RequestRefused: the client may not.
        """
        if self._is_by_platform:
            return self.hint(TARGET_VARIANT)
        pinned = self.hint(PIN)
        server = self.server
        gate = self.relay.dispatcher.gate
        if pinned and (server is None or not gate.may_control(self.plan.claim, server.client)):
            raise RequestRefused(Reason.FORBIDDEN, _MAY_NOT)
        return pinned

    def _take(self, rules: VariantRules, found: Particulars | None) -> None:
        """Make the request one for a variant."""
        name = self.plan.model
        route = self.relay.dispatcher.pool.current.routes.get(rules.model)
        self.model = rules.model
        if found is not None or rules.version or (route is not None and route.plan is not None):
            found = found or Particulars()
            own = Particulars(rules.version, found.rows, found.priority)
            own.size, own.regions = found.size, found.regions
            if found.step is not None:
                own.step = found.step._replace(key=SequenceKey(rules.model, found.step.key.id))
            elif route is not None and route.plan is not None and self.plan.is_inference:
                own.rows = found.rows or 1
            self.particulars = own
        version = b"/versions/%b" % rules.version if rules.version else b""
        start = b"%b %b" % (self.plan.method, _MODELS)
        self.body.replace_start(start + name, start + rules.model + version)

    # How it ends

    def client_gone(self, reason: Reason) -> None:
        """See `Http1Exchange`."""
        self._is_left = True
        super().client_gone(reason)

    def _leave_client(self, reason: Reason | None) -> ClientSide | None:
        self.reason = reason or self.reason
        return super()._leave_client(reason)

    def count(self) -> None:
        """The client's side is over: count it for its variant."""
        variant = self._variant
        if (
            variant is None
            or self._is_left
            or self.operation.kind is not OperationKind.INFERENCE
            or not is_counted(self.reason)
        ):
            return
        is_error = self.status >= _ERRORS or self.reason is not None
        took_s = self.relay.clock() - self.started_at if self.status in _GOOD else None
        variant.count(took_s, is_error=is_error)


class VariantHandler:
    """Counts a request for its variant when it is over. Implements `RequestHandler`."""

    __slots__ = ("_exchange", "_inner", "collects")

    def __init__(self, exchange: VariantExchange) -> None:
        self._exchange = exchange
        self._inner: RequestHandler | None = exchange.handler
        """Looks into the request before it goes on, where somebody does."""
        self.collects = False

    def start(self, head: bytes, pieces: list[Payload], *, ended: bool) -> None:
        """See `RequestHandler`."""
        (self._inner or self._exchange).start(head, pieces, ended=ended)

    def add(self, pieces: list[Payload], *, ended: bool) -> None:
        """See `RequestHandler`."""
        (self._inner or self._exchange).add(pieces, ended=ended)

    @property
    def is_busy(self) -> bool:
        """See `RequestHandler`."""
        return self._inner is not None and self._inner.is_busy

    def close(self) -> None:
        """See `RequestHandler`."""
        if self._inner is not None:
            self._inner.close()
        self._exchange.count()


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
            is_stream: the answer is a stream of events, each of which has the name.
        """
        self._inner = inner
        self._key = key
        self._model = model
        self._name = name
        self._is_stream = is_stream
        self.changes_all = is_stream
        self._head: ResponseHead | None = None
        """Of an answer that is held back."""
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
        return self._inner.take(*taken, ended=ended)

    def _named(
        self, head: ResponseHead | None, pieces: list[Payload], *, ended: bool
    ) -> tuple[ResponseHead | None, list[Payload]] | None:
        if head is not None:
            self._head, self._held, self._delta = None, b"", 0
            if (
                head.is_error
                or _ENCODED.search(head.plain)
                or (self._is_stream and head.length > 0)
            ):
                self.changes_all = self._is_stream = False
                return head, pieces
            if not self._is_stream:
                found = _JSON_LENGTH.search(head.plain)
                self._json_size = int(found[1]) if found is not None else -1
                self._head = head
        if self._is_stream:
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
