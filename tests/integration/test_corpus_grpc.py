"""The corpus for gRPC against the process as users run it."""

from __future__ import annotations

import pytest

from tests.corpus.grpc import BY_ID, ROWS
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
