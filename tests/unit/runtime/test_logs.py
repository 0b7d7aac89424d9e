from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from lb.net.files import answer_of
from lb.runtime.logs import LogFileError, Logs
from lb.settings.flags import settings_from_flags
from lb.settings.model import Settings
from lb.settings.reporting import AccessLogMode, AccessLogSettings


def settings(mode: AccessLogMode, path: str) -> Settings:
    base = settings_from_flags(["127.0.0.1:18000"])
    return base.model_copy(update={"access_log": AccessLogSettings(mode=mode, path=path)})


def test_access_log_that_is_off_has_no_writer(tmp_path: Path) -> None:
    logs = Logs(settings(AccessLogMode.OFF, str(tmp_path / "access.log")))
    try:
        assert logs.files.access is None
        assert set(logs.dropped()) == {"application"}
        logs.reopen()
    finally:
        logs.close()
    assert not list(tmp_path.iterdir())


def test_reopening_follows_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    logs = Logs(settings(AccessLogMode.ALL, str(path)))
    assert logs.files.access is not None
    logs.files.access.write(b"one\n")
    logs.close()
    path.rename(tmp_path / "access.log.1")
    logs = Logs(settings(AccessLogMode.ALL, str(path)))
    assert logs.files.access is not None
    logs.reopen()
    logs.files.access.write(b"two\n")
    logs.close()
    assert (tmp_path / "access.log.1").read_bytes() == b"one\n"
    assert path.read_bytes() == b"two\n"


def test_a_file_that_cannot_be_opened_is_named() -> None:
    with pytest.raises(LogFileError, match="cannot open the access log /nowhere/a: No such file"):
        Logs(settings(AccessLogMode.ALL, "/nowhere/a"))


def test_a_file_that_hangs_ends_the_start_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, path = threading.Event(), tmp_path / "access.log"
    plainly = os.open

    def hanging_open(name: Any, *args: Any, **more: Any) -> int:
        if name == path:
            answers.wait()
        return plainly(name, *args, **more)

    monkeypatch.setattr(os, "open", hanging_open)
    monkeypatch.setattr(answer_of, "__kwdefaults__", {**answer_of.__kwdefaults__, "timeout_s": 0.1})
    with pytest.raises(LogFileError, match=r"access\.log: it does not answer"):
        Logs(settings(AccessLogMode.ALL, str(path)))
    answers.set()


def test_no_library_writes_header_values_at_debug() -> None:
    logs = Logs(settings(AccessLogMode.OFF, "-"))
    logs.close()
    assert not logging.getLogger("hpack").isEnabledFor(logging.DEBUG)
    assert not logging.getLogger("hpack.hpack").isEnabledFor(logging.DEBUG)
