"""A response to an inference that may turn out to be too short to be one."""

from __future__ import annotations

from lb.kserve.faults import LEAST_RESPONSE, lacks_outputs
from lb.kserve.gate import NameMask


class ShortResponse(NameMask):
    """Keeps the beginning of a response that comes in several reads. The client gets each at once.

    It extends the mask, as `RecordedResponse` does.
    """

    __slots__ = ("_mask", "_start")

    def __init__(self, mask: NameMask | None) -> None:
        """
        Args:
            mask: of the response; None where it goes on as it comes.
        """
        super().__init__()
        self._mask = mask
        self._start = b""
        """As far as it is shorter than a result may be, and a piece more."""

    def passes(self, data: bytes) -> bool:
        """See `NameMask`."""
        mask = self._mask
        return len(self._start) >= LEAST_RESPONSE and (mask is None or mask.passes(data))

    def feed(self, piece: bytes) -> bytes:
        """See `NameMask`."""
        if len(self._start) < LEAST_RESPONSE:
            self._start += piece[:LEAST_RESPONSE]
        return piece if self._mask is None else self._mask.feed(piece)

    @property
    def lacks_outputs(self) -> bool:
        """Whether it was short, and an object without outputs; to be asked at its end."""
        return len(self._start) < LEAST_RESPONSE and lacks_outputs(self._start)
