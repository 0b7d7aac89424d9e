"""Runs the tests against mutants in a copy of the tree; what is known survives an interruption."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import coverage
import pytest

from tests.fakes.process import REPOSITORY
from tests.mutants import mutate
from tests.mutants.contexts import TIMES
from tests.mutants.mutate import Mutant

TESTS = (
    "tests/unit/proxy",
    *(f"tests/property/test_{name}.py" for name in ("http1_relay", "http2_relay", "stream_relay")),
    *(
        f"tests/integration/test_{name}.py"
        for name in (
            *("grpc_relay", "http1_relay", "http1_life", "http1_mixed", "http1_bad_requests"),
            *("http1_bad_backends", "http2_lifecycle", "http2_flow", "http2_backends"),
            *("second_attempts", "queue", "queue_uploads", "stream_scheduling"),
            *("stream_sequences", "lost_requests", "unheard", "unusable_answers"),
        )
    ),
)
"""In one process each: a process that a test starts does not tell which lines it runs for whom."""

KILLED, SURVIVED, NOT_RUN = "killed", "survived", "not run"
"""What became of a mutant; the last one is in no line that any of the tests runs."""

_TEST_LIMIT_S = 30
"""A test that takes longer hangs."""
_TESTS_S = 40.0
"""How long the tests of one mutant may take by the durations measured; the quickest go first."""
_MOST_TESTS = 150
_LIMIT_S = 400.0
"""Ends the run for a mutant: it hangs where no test limit helps."""


class Workshop:
    """A copy of the tree, which tests run which of its lines, and what became of its mutants.

    All of it is kept in a folder of its own for the content of the tree.
    """

    def __init__(self, builds: Path) -> None:
        files = _tracked()
        self._folder = builds / _digest(files)
        self._tree = self._folder / "tree"
        self._outcomes = self._folder / "outcomes.json"
        self.outcomes: dict[str, str] = {}
        if self._outcomes.exists():
            self.outcomes = json.loads(self._outcomes.read_text())
        shutil.rmtree(self._tree, ignore_errors=True)
        for file in files:
            target = self._tree / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / file, target)
        self.sources = {
            str(path.relative_to(self._tree)): path.read_text()
            for path in sorted((self._tree / "lb" / "proxy").rglob("*.py"))
        }

    def learn(self) -> None:
        """Find out which tests run which lines, unless that is known.

        Tests that fail without any mutant are not used.

        Raises:
            RuntimeError: the tests do not run.
        """
        if not (self._folder / "times.json").exists():
            argv = (
                *("-m", "coverage", "run", "--rcfile=/dev/null", "--include=lb/proxy/*"),
                *(f"--data-file={self._folder / 'lines'}", "-m", "pytest", "-q"),
                *("-p", "no:cacheprovider", "-p", "tests.mutants.contexts", *TESTS),
            )
            times = self._folder / "times.part"
            done = subprocess.run(
                (sys.executable, *argv), cwd=self._tree, env={**os.environ, TIMES: str(times)}
            )
            if done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
                raise RuntimeError("the tests do not run")
            times.rename(self._folder / "times.json")

    def play(self, mutant: Mutant) -> str:
        """Run the tests against a mutant, or tell what is known of it."""
        if mutant.name not in self.outcomes:
            self.outcomes[mutant.name] = self._play(mutant)
            self._outcomes.write_text(json.dumps(self.outcomes, indent=1))
        return self.outcomes[mutant.name]

    def _play(self, mutant: Mutant) -> str:
        tests = self._tests(mutant)
        if not tests:
            return NOT_RUN
        path = self._tree / mutant.module
        written = path.stat()
        path.write_text(mutate.apply(self.sources[mutant.module], mutant))
        try:
            code = self._pytest(*tests)
        except subprocess.TimeoutExpired:
            return KILLED
        finally:
            path.write_text(self.sources[mutant.module])
            # So that what Python compiled of it is still of use.
            os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))
        if code == pytest.ExitCode.USAGE_ERROR and self._pytest("--collect-only", *tests) == code:
            raise RuntimeError(f"some of these tests have another name in each run: {tests}")
        return SURVIVED if code == pytest.ExitCode.OK else KILLED

    def _pytest(self, *arguments: str) -> int:
        argv = (sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider")
        done = subprocess.run(
            (*argv, *arguments),
            cwd=self._tree,
            env={**os.environ, "TEST_LIMIT_S": str(_TEST_LIMIT_S)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_LIMIT_S,
        )
        return done.returncode

    def _tests(self, mutant: Mutant) -> list[str]:
        """The tests that run the statement, quickest first, as many as there is time for."""
        times: Mapping[str, float] = json.loads((self._folder / "times.json").read_text())
        data = coverage.CoverageData(str(self._folder / "lines"))
        data.read()
        lines = data.contexts_by_lineno(str(self._tree / mutant.module))
        span = range(mutant.line, mutant.last_line + 1)
        tests = {test for line in span for test in lines.get(line, ())}
        chosen, left_s = [], _TESTS_S
        for test in sorted(tests & times.keys(), key=lambda each: (times[each], each))[
            :_MOST_TESTS
        ]:
            left_s -= times[test]
            if left_s < 0 and chosen:
                break
            chosen.append(test)
        return chosen


def _tracked() -> list[str]:
    """The files of the tree, but for those that git ignores."""
    argv = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    done = subprocess.run(argv, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    return sorted(file for file in done.stdout.splitlines() if (REPOSITORY / file).is_file())


def _digest(files: Iterable[str]) -> str:
    """Of what decides about mutants: the product and its tests, without this package."""
    found = hashlib.sha256()
    for file in files:
        is_ours = file.startswith(("lb/", "tests/")) and not file.startswith("tests/mutants/")
        if is_ours and file.endswith(".py"):
            found.update(file.encode() + b"\0" + (REPOSITORY / file).read_bytes() + b"\0")
    return found.hexdigest()[:16]
