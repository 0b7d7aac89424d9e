"""The access log: one line of JSON per finished request.

Whatever a client sends, a request is exactly one line: every value from the wire is decoded with
escapes, written as pure ASCII JSON, and cut so that a line is at most 8 KiB.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from json.encoder import encode_basestring_ascii as quoted
from random import Random
from typing import Final, NamedTuple, Protocol

from lb.domain.outcome import OF_CLIENTS, Reason
from lb.settings.reporting import AccessLogMode
from lb.telemetry.facts import FACTS, Value
from lb.telemetry.line_limit import LineLimit
from lb.telemetry.record import RequestRecord

MAX_LINE_BYTES: Final = 8192
LINES_PER_S: Final = 100.0
LINES_AT_ONCE: Final = 1000
"""Of requests that failed through their client's fault, for each reason: whoever can send bad
requests must not fill the disk. In the mode `all` there is no such limit."""
CLIENTS_FAULT: Final = OF_CLIENTS | {Reason.LOOP}
"""What a client can make happen: the fields that tell of a loop may be its own."""


class _Widths(NamedTuple):
    """How many characters or bytes of a value are kept."""

    path: int
    other: int


# Escaping makes at most six characters of one byte. The second set keeps any line below its limit:
# (350 + 5 * 128) * 6 is 5,940, the id of a sequence has at most 128 bytes, which is 768, and keys,
# numbers and words of ours take less than 1,000.
_USUAL_WIDTHS: Final = _Widths(path=4096, other=256)
_SAFE_WIDTHS: Final = _Widths(path=350, other=128)


class LineSink(Protocol):
    """Takes lines: a `LineWriter`."""

    def write(self, line: bytes) -> None:
        """Take one line, newline included. Never blocks, never raises."""
        ...


class AccessLog:
    """A `RequestSink` that writes lines; which ones is a matter of the mode."""

    def __init__(
        self,
        writer: LineSink,
        *,
        mode: AccessLogMode,
        sample: float,
        rng: Random,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Log to `writer`, which stays the caller's.

        Args:
            writer: takes the lines.
            mode: `off`, `errors`, `sampled` (errors and a share of the rest) or `all`.
            sample: that share, 0 to 1. Taken evenly, not at random: 0.1 is every tenth request.
            rng: makes ids for requests that have none.
            wall_ns: Unix time in nanoseconds.
        """
        self._write = writer.write
        self._logs_all = mode is AccessLogMode.ALL
        self._logs_errors = mode is not AccessLogMode.OFF
        self._logs_sample = mode is AccessLogMode.SAMPLED
        self._sample = sample
        self._owed = 0.0
        """Requests that the sample has coming; one is logged when it reaches 1."""
        self._rng = rng
        self._wall_ns = wall_ns
        self._limit = LineLimit(LINES_PER_S, LINES_AT_ONCE)
        self._second = -1
        self._second_text = ""

    def finished(self, record: RequestRecord) -> None:
        """Log one request, if the mode wants it. Never blocks, never raises."""
        if self._admit(record):
            self._write(self.line(record))
            for reason, count in self._limit.left_out(record.ended_at):
                self._write(self._left_out(reason, count))

    def _admit(self, record: RequestRecord) -> bool:
        if self._logs_all:
            return True
        reason = record.reason
        if reason is not None or (record.status >= 500 and record.backend is None):
            return self._logs_errors and (
                reason not in CLIENTS_FAULT or self._limit.admits(reason, record.ended_at)
            )
        if not self._logs_sample:
            return False
        self._owed += self._sample
        if self._owed < 1.0:
            return False
        self._owed -= 1.0
        return True

    def line(self, record: RequestRecord) -> bytes:
        """The line of one request, newline included."""
        time_text = self._time()
        request_id = record.request_id or b"%016x" % self._rng.getrandbits(64)
        line = _render(record, time_text, request_id, _USUAL_WIDTHS)
        if len(line) > MAX_LINE_BYTES:
            line = _render(record, time_text, request_id, _SAFE_WIDTHS)
        return line.encode("ascii")

    def _left_out(self, reason: object, count: int) -> bytes:
        """Tell how many lines the limit has left out."""
        text = quoted(reason.value) if isinstance(reason, Reason) else "null"
        return f'{{"time":"{self._time()}","reason":{text},"left_out":{count}}}\n'.encode("ascii")

    def _time(self) -> str:
        """Now, as RFC 3339 in UTC with milliseconds. The text of a second is made once."""
        second, rest_ns = divmod(self._wall_ns(), 1_000_000_000)
        if second != self._second:
            self._second = second
            self._second_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._second_text}.{rest_ns // 1_000_000:03d}Z"


def _render(record: RequestRecord, time_text: str, request_id: bytes, widths: _Widths) -> str:
    """The line at the given widths."""
    parts = [f'{{"time":"{time_text}","request_id":{_text(request_id, widths.other)}']
    for fact in FACTS:
        value = fact.read(record)
        width = widths.path if fact.is_long else widths.other
        parts.append(f',"{fact.log}":{_written(value, width)}')
    parts.append("}\n")
    return "".join(parts)


def _written(value: Value, width: int) -> str:
    """A fact as JSON."""
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return _text(value, width)
    if isinstance(value, str):
        return quoted(_cut(value, width))
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def _text(value: bytes, width: int) -> str:
    """Bytes of the wire as a JSON string; what is not UTF-8 shows as `\\xNN`."""
    cut = value if len(value) <= width else value[:width] + b"..."
    return quoted(cut.decode("utf-8", "backslashreplace"))


def _cut(value: str, width: int) -> str:
    return value if len(value) <= width else value[:width] + "..."
