"""An HTTP/1.1 GET of which the status matters, and of a model's state the body."""

from __future__ import annotations

import re
from typing import Final

from lb.health.port import Finding
from lb.kserve.tfserving import shows_available
from lb.probes.plan import (
    NO_BACKEND_READY,
    READY,
    READY_PATH,
    ProbeAnswer,
    ProbePlan,
    ProbeQuestion,
)
from lb.wire.hops import HOPS, READY_THROUGH, passed
from lb.wire.http1.limits import INTERIM_RESPONSES

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})[ \r\n]")
_LONGEST_START: Final = len(b"HTTP/1.1 200 ")
_NOT_READY: Final = 400
_MODELS_NOT_READY: Final = ProbeAnswer(Finding.MODELS_NOT_READY, f"HTTP status {_NOT_READY}")
_LOOP: Final = 508
_HEAD_LIMIT: Final = 16_384
"""An interim answer's head must end within this many bytes."""
_STATUS_LIMIT: Final = 65_536
"""Longest answer about the state of a model."""
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length:[ \t]*([0-9]{1,9})[ \t]*\r\n")
_THROUGH: Final = re.compile(rb"(?i)\r\n" + READY_THROUGH + rb":([^\r\n]*)")
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"


class HttpGet:
    """One GET on a connection of its own."""

    __slots__ = ("_interim", "_plan", "_received", "answer")

    def __init__(self, plan: ProbePlan) -> None:
        self.answer: ProbeAnswer | None = None
        self._plan = plan
        self._received = b""
        self._interim = 0
        """Interim answers that have come."""

    def opening(self) -> bytes:
        """The request; headers of the operator replace ours."""
        plan = self._plan
        own = {name.lower() for name, _ in plan.headers}
        defaults = (
            ("Host", "localhost" if plan.address.path else str(plan.address)),
            ("User-Agent", "triton-lb"),
            ("Accept", "*/*"),
            ("Connection", "close"),
        )
        fields = [*(field for field in defaults if field[0].lower() not in own), *plan.headers]
        if plan.identity:
            fields.append((HOPS.decode(), plan.identity.decode()))
        lines = [f"GET {plan.path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
        return "\r\n".join([*lines, "", ""]).encode()

    def receive(self, data: bytes) -> bytes:
        """Look for the status line; an interim answer (1xx) comes before the real one."""
        self._received += data
        while self.answer is None and len(self._received) >= _LONGEST_START:
            match = _STATUS_LINE.match(self._received)
            if match is None:
                self.answer = ProbeAnswer(Finding.ERROR, "the answer is not HTTP/1.1")
            elif match[1][0] == ord("1"):
                head, end, rest = self._received.partition(b"\r\n\r\n")
                self._interim += bool(end)
                if len(head) > _HEAD_LIMIT or self._interim > INTERIM_RESPONSES:
                    self.answer = ProbeAnswer(Finding.ERROR, "endless interim answers")
                if not end:
                    break
                self._received = rest
            elif self._plan.question is ProbeQuestion.MODEL_STATUS_GET and match[1] == b"200":
                self.answer = self._judge_state()
                break
            elif int(match[1]) in self._plan.expected_status:
                self.answer = self._judge_head(READY)
                break
            elif self._says_not_ready(int(match[1])):
                self.answer = self._judge_head(_MODELS_NOT_READY)
                break
            else:
                self.answer = _not_ready(int(match[1]))
        return b""

    def _judge_state(self) -> ProbeAnswer | None:
        """Look for an available version; None while there may be one to come."""
        head, end, body = self._received.partition(b"\r\n\r\n")
        if end and shows_available(body):
            return READY
        if len(self._received) > _STATUS_LIMIT:
            return ProbeAnswer(Finding.ERROR, "endless answer")
        length = _LENGTH.search(head + b"\r\n")
        is_whole = body.endswith(_LAST_CHUNK) if length is None else len(body) >= int(length[1])
        if not end or not is_whole:
            return None
        return ProbeAnswer(Finding.NOT_READY, "no version of the model is available")

    def _judge_head(self, answer: ProbeAnswer) -> ProbeAnswer | None:
        """Take an answer about readiness, once its head is complete: a balancer says there through
        which other balancers it is ready, and that it is one."""
        head, end, _ = self._received.partition(b"\r\n\r\n")
        if len(head) > _HEAD_LIMIT:
            return ProbeAnswer(Finding.ERROR, "endless head of an answer")
        if not end:
            return None
        through = _THROUGH.search(head)
        if through is None:
            return answer
        return (
            ProbeAnswer(Finding.READY, "", passed(through[1]))
            if answer is READY
            else NO_BACKEND_READY
        )

    def _says_not_ready(self, status: int) -> bool:
        # Triton says 503 as it exits, and 400 while a model of its is not ready.
        return status == _NOT_READY and self._plan.path == READY_PATH


def _not_ready(status: int) -> ProbeAnswer:
    detail = f"HTTP status {status}"
    return ProbeAnswer(Finding.NOT_READY, f"{detail}: loop detected" if status == _LOOP else detail)
