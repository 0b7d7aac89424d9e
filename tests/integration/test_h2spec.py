"""The cases of h2spec against the process as users run it, each with the code that is right."""

from __future__ import annotations

import pytest

from tests.corpus.h2spec import OBSOLETE, ROWS
from tests.corpus.http2_process import PACES, TRANSPORTS, Verdicts, play_wanted, raise_flaw

BY_NUMBER = {row.id: row for row in ROWS}


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """All cases that this run asks for, played once."""
    return play_wanted(request, tmp_path_factory, ROWS)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("id_", BY_NUMBER)
def test_case(verdicts: Verdicts, id_: str, transport: str, pace: str) -> None:
    raise_flaw(BY_NUMBER[id_], verdicts[id_, transport, pace])


def test_no_case_is_missing() -> None:
    assert len(BY_NUMBER) == len(ROWS)
    assert len(BY_NUMBER | OBSOLETE) == 147
