"""What a call of our own is to the connection that carries it: bytes in, bytes out, an answer."""

from __future__ import annotations

from typing import Final, Protocol, TypeAlias, TypeVar

from lb.domain.backend import Address
from lb.wire.hops import HOPS

AnswerT_co = TypeVar("AnswerT_co", covariant=True)

Payload: TypeAlias = bytes | memoryview
Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Header fields, names in lower case."""

ANSWER_BYTES: Final = 64 * 2**20
"""Longest answer that is taken: the statistics of a thousand models are about 1 MiB."""
PIECE_BYTES: Final = 256 * 1024
"""What is handed to a transport at once of a request that may be hundreds of megabytes: event
loops copy what does not fit into the socket."""


class ClientCall(Protocol[AnswerT_co]):
    """One request in one protocol, without IO."""

    @property
    def answer(self) -> AnswerT_co | None:
        """Set once the answer is complete."""
        ...

    @property
    def is_reusable(self) -> bool:
        """Whether another call may follow on the connection, once there is an answer."""
        ...

    def release(self) -> None:
        """Hold nothing of the request and its answer any more."""
        ...

    def opening(self) -> bytes:
        """What to send when the connection stands, or is free again."""
        ...

    def upload(self) -> list[Payload]:
        """What may be sent of the request now; empty when that is nothing."""
        ...

    def receive(self, data: bytes) -> bytes:
        """Take bytes of the backend, on a connection that is kept also after the answer.

        Returns:
            What to send back.

        Raises:
            UpstreamError: there will be no answer.
        """
        ...

    def closed(self) -> None:
        """The backend has closed the connection, which may be how the answer ends."""
        ...


OperatorHeaders: TypeAlias = tuple[tuple[str, str], ...]
"""`headers` of a backend: for calls of our own."""


def authority(headers: OperatorHeaders, address: Address) -> bytes:
    """How a backend is addressed in calls of our own: as the operator says, or its address."""
    given = next((value for name, value in headers if name.lower() == "host"), None)
    return (given or ("localhost" if address.path else str(address))).encode()


def marked(fields: Fields, identity: bytes) -> Fields:
    """Fields of a request with our hop marker, see `lb.wire.hops`. A request that we pass on for a
    client has it already; without an identity there is none."""
    marker = (HOPS, identity)
    return fields if not identity or marker in fields else (*fields, marker)


def with_operator_fields(fields: Fields, headers: OperatorHeaders) -> Fields:
    """Fields of a request with those that the operator wants on calls of our own.

    They replace fields of the same name; `host` is none of them (see `authority`).
    """
    own = tuple((name.lower().encode(), value.encode()) for name, value in headers)
    names = {name for name, _ in own}
    kept = tuple(field for field in fields if field[0] not in names)
    return kept + tuple(field for field in own if field[0] != b"host")
