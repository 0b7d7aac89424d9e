"""Following files: what is new is loaded, what is bad is looked at twice and told once."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from lb.net.tls.server import ServerTls
from lb.net.tls.watch import FileWatch
from tests.fakes.tls import World, poll


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class Watched:
    """A listener's TLS under a watch."""

    def __init__(self, world: World) -> None:
        self.tls = ServerTls("https", world.options(), ("h2",))
        self.watch = FileWatch()
        self.watch.add(self.tls)
        self.certificate, self.key = map(Path, world.server)
        self._before = self.tls.context("")

    def has_changed(self) -> bool:
        """Whether there is a new context since the last question."""
        before, self._before = self._before, self.tls.context("")
        return self._before is not before


@pytest.fixture
def watched(world: World) -> Watched:
    return Watched(world)


def test_nothing_is_loaded_while_nothing_changes(watched: Watched) -> None:
    for _ in range(3):
        poll(watched.watch)
    assert not watched.has_changed()


def test_who_is_watched_twice_is_loaded_once(watched: Watched) -> None:
    (entry,) = watched.watch
    assert watched.watch.add(watched.tls) is entry
    assert list(watched.watch) == [entry]


def test_a_new_pair_is_loaded(world: World, watched: Watched) -> None:
    world.pair("server", "localhost")
    poll(watched.watch)
    assert watched.has_changed()
    poll(watched.watch)
    assert not watched.has_changed()


def test_a_link_to_another_folder_is_followed(world: World, watched: Watched) -> None:
    # As Kubernetes replaces mounted secrets: by exchanging a symbolic link.
    for number in (1, 2):
        folder = world.folder / f"v{number}"
        folder.mkdir()
        world.authority.issue("localhost").write(folder, "tls")
    link = world.folder / "data"
    link.symlink_to("v1")
    watched.certificate.unlink()
    watched.key.unlink()
    watched.certificate.symlink_to("data/tls.crt")
    watched.key.symlink_to("data/tls.key")
    poll(watched.watch)
    assert watched.has_changed()
    new = world.folder / "new"
    new.symlink_to("v2")
    os.replace(new, link)
    poll(watched.watch)
    assert watched.has_changed()


def test_a_half_written_pair_is_not_worth_a_word(
    world: World, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    pair = world.authority.issue("localhost")
    watched.certificate.write_bytes(pair.certificate)
    poll(watched.watch)
    watched.key.write_bytes(pair.key[:40])
    poll(watched.watch)
    assert not watched.has_changed()
    watched.key.write_bytes(pair.key)
    poll(watched.watch)
    assert watched.has_changed()
    assert watched.watch.failures == 0
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("harm", ["mismatch", "missing", "empty"])
def test_a_bad_pair_is_told_once_and_mended_later(
    world: World, watched: Watched, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    good = watched.key.read_bytes()
    if harm == "missing":
        watched.key.unlink()
    else:
        watched.key.write_bytes(b"" if harm == "empty" else world.authority.issue("x").key)
    for _ in range(5):
        poll(watched.watch)
    assert watched.watch.failures == 1
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert not watched.has_changed()
    watched.key.write_bytes(good)
    poll(watched.watch)
    assert watched.has_changed()
    watched.key.write_bytes(b"again")
    for _ in range(3):
        poll(watched.watch)
    assert watched.watch.failures == 2


def test_expiries_are_those_in_use(world: World, watched: Watched) -> None:
    ((file, before),) = watched.watch.expiries()
    assert file == world.server[0]
    watched.certificate.write_bytes(b"")
    poll(watched.watch)
    assert list(watched.watch.expiries()) == [(file, before)]
