"""The corpus for HTTP/2 against the process as users run it: each row over plain TCP with prior
knowledge and over TLS with ALPN, all at once and byte by byte, with a backend that notes what
arrives."""

from __future__ import annotations

import pytest

from tests.corpus.http2 import BY_ID, DEVIATIONS, LATE, ROWS
from tests.corpus.http2_process import PACES, TRANSPORTS, Verdicts, play_wanted, raise_flaw

LATE_BY_ID = {row.id: row for row in LATE}


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """All rows that this run asks for, played once."""
    return play_wanted(request, tmp_path_factory, ROWS)


@pytest.fixture(scope="module")
def lateness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """The same for a process that waits three seconds for preface, SETTINGS and heads."""
    return play_wanted(request, tmp_path_factory, LATE, timeouts={"head": "3s"})


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("id_", BY_ID)
def test_row_gets_its_right_answer(verdicts: Verdicts, id_: str, transport: str, pace: str) -> None:
    raise_flaw(BY_ID[id_], verdicts[id_, transport, pace])


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("id_", LATE_BY_ID)
def test_nothing_is_waited_for_for_ever(
    lateness: Verdicts, id_: str, transport: str, pace: str
) -> None:
    raise_flaw(LATE_BY_ID[id_], lateness[id_, transport, pace])


def test_every_row_has_its_own_name() -> None:
    assert len(BY_ID | LATE_BY_ID) == len(ROWS) + len(LATE)


def test_every_deviation_names_rows_and_says_why() -> None:
    for deviation in DEVIATIONS:
        assert set(deviation.rows) <= set(BY_ID)
        assert deviation.asked
        assert deviation.reason
