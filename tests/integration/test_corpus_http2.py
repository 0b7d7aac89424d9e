"""The corpus for HTTP/2 against the process as users run it: each row over plain TCP with prior
knowledge and over TLS with ALPN, all at once and byte by byte, with a backend that notes what
arrives."""

from __future__ import annotations

import pytest

from tests.corpus.http2 import BY_ID, DEVIATIONS, ROWS
from tests.corpus.http2_process import PACES, TRANSPORTS, Verdicts, play_wanted, raise_flaw


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """All rows that this run asks for, played once."""
    return play_wanted(request, tmp_path_factory, ROWS)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("id_", BY_ID)
def test_row_gets_its_right_answer(verdicts: Verdicts, id_: str, transport: str, pace: str) -> None:
    raise_flaw(BY_ID[id_], verdicts[id_, transport, pace])


def test_every_row_has_its_own_name() -> None:
    assert len(BY_ID) == len(ROWS)


def test_every_deviation_names_rows_and_says_why() -> None:
    for deviation in DEVIATIONS:
        assert set(deviation.rows) <= set(BY_ID)
        assert deviation.asked
        assert deviation.reason
