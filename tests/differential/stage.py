"""Two Tritons that are alike, one of them behind the balancer."""

from __future__ import annotations

import time
from pathlib import Path

from tests.differential.cases import Case, GrpcCase, HttpCase
from tests.differential.compare import Outcome
from tests.differential.grpc_player import GrpcPlayer
from tests.differential.http_player import HttpPlayer
from tests.differential.payloads import MODELS
from tests.fakes.process import wait_until
from tests.triton.balancer import RunningBalancer
from tests.triton.server import RealTriton
from tests.triton.target import Target, http_status

_SETTLE_S = 60.0
_SETTLED_FOR_S = 0.1
_INDEX = HttpCase(
    method=b"POST", target=b"/v2/repository/index", fields=((b"Host", b"a"),), body=b""
)
_OPTIONS = ("--model-control-mode=explicit", *(f"--load-model={name}" for name in MODELS))


class Side:
    """Where a case is played."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._http = HttpPlayer(target.http)
        self._grpc = GrpcPlayer(target.grpc)

    def play(self, case: Case) -> Outcome:
        """Play a case."""
        return self._http.play(case) if isinstance(case, HttpCase) else self._grpc.play(case)

    def is_settled(self) -> bool:
        """Whether it says that it is ready, and none of its models comes or goes."""
        if http_status(self._target.http, "/v2/health/ready") != 200:
            return False
        models = self._http.play(_INDEX).body
        return b'"LOADING"' not in models and b'"UNLOADING"' not in models

    def close(self) -> None:
        """Close what is open."""
        self._grpc.close()


class Stage:
    """Both sides, which see the same cases in the same order."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._times = 0
        self._tritons: list[RealTriton] = []
        self._balancer: RunningBalancer | None = None
        self.sides: tuple[Side, ...] = ()
        """The Triton, and the balancer before the other one."""
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        self._times += 1
        folder = self._workspace / str(self._times)
        records = folder / "records"
        records.mkdir(parents=True)
        environment = {"TEST_SERVER_NAME": "triton"}
        for number in range(2):
            name = f"triton-{number}"
            self._tritons.append(
                RealTriton(name, folder, records, *_OPTIONS, environment=environment)
            )
        for triton in self._tritons:
            triton.wait_ready()
        direct, behind = self._tritons
        self._balancer = RunningBalancer(folder, [behind])
        self._balancer.wait_ready()
        self.sides = Side(direct.target), Side(self._balancer.target)

    def begin_anew(self) -> None:
        """Replace everything: the sides are alike again."""
        self.close()
        self._begin()

    def play(self, case: Case) -> tuple[Outcome, Outcome]:
        """Play a case on both sides."""
        direct, balanced = (side.play(case) for side in self.sides)
        if _changes_models(case):
            self.settle()
        return direct, balanced

    def settle(self) -> None:
        """Wait until both sides are ready: a Triton that loads or unloads a model is not, and the
        balancer's probes need a second to see it."""
        wait_until(self._is_settled, timeout_s=_SETTLE_S, what="both sides are ready")

    def _is_settled(self) -> bool:
        if not all(side.is_settled() for side in self.sides):
            return False
        time.sleep(_SETTLED_FOR_S)
        return all(side.is_settled() for side in self.sides)

    def died(self) -> list[str]:
        """Tritons that have ended."""
        return [triton.name for triton in self._tritons if not triton.is_running]

    def close(self) -> None:
        """End all of it."""
        for side in self.sides:
            side.close()
        self.sides = ()
        if self._balancer is not None:
            self._balancer.close()
            self._balancer = None
        while self._tritons:
            self._tritons.pop().close()


def _changes_models(case: Case) -> bool:
    if isinstance(case, GrpcCase):
        return case.method.startswith("RepositoryModel")
    return case.path.endswith((b"/load", b"/unload"))
