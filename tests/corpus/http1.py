"""What clients should not send over HTTP/1.1, and the right answer to each: the whole corpus.

The rows name the rule, not one server's quirk. A row with status 200 is legal though unusual and
reaches the backend in its clean form; any other is answered by us, once, and the connection is
closed. The rows of b1 in the review of trusted proxies keep their ids.
"""

from __future__ import annotations

from typing import Final

from tests.corpus import http1_framing, http1_heads
from tests.corpus.http1_rows import Row

ALL: Final[tuple[Row, ...]] = http1_framing.ALL + http1_heads.ALL

DEVIATIONS: Final[dict[str, str]] = {}
