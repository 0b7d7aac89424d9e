"""The comparison itself: a version does not differ from itself, and a change is seen."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from tests.against.__main__ import report
from tests.against.compare import compare
from tests.fakes.process import REPOSITORY

SEED = 1
PLANS = range(150)


def test_a_version_does_not_differ_from_itself(tmp_path: Path) -> None:
    found = asyncio.run(compare(tmp_path, REPOSITORY, REPOSITORY, PLANS, SEED))
    assert (found.differences, found.counters) == ((), ()), report(found)


def test_another_answer_is_a_difference(tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    changed.mkdir()
    shutil.copytree(REPOSITORY / "lb", changed / "lb", ignore=shutil.ignore_patterns("__pycache__"))
    retry = changed / "lb" / "domain" / "retry.py"
    text = retry.read_text()
    retry.write_text(
        text + "\n\ndef decide(*_: object, **__: object) -> Verdict:\n    return Verdict.FAIL\n"
    )
    found = asyncio.run(compare(tmp_path, REPOSITORY, changed, range(40), SEED))
    assert found.differences
