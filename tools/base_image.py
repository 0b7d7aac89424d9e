"""Parts of the tests that build images where no registry of images can be asked.

Debian's debootstrap makes roots that stand in for the official images. Packages come from a folder
that is filled before, so that a build itself asks nobody.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "image"
WHEELS = FOLDER / "wheels"
BASE = FOLDER / "base"
"""In place of the image that the product runs on."""
BUILDER = FOLDER / "builder"
"""In place of the image that compiles it, and of the one that Triton comes in."""
RELEASE = "bookworm"
_PACKAGES = {
    BASE: "python3,python3-venv,ca-certificates",
    BUILDER: "python3,python3-venv,python3-dev,gcc,libc6-dev,curl,libstdc++6",
}
BUILDER_ENV = "TRITON_LB_COMPILE_O=0"
"""The C compiler's optimiser takes most of the time, and these tests show nothing of it."""
LIMIT_S = 2400
"""Of one command."""


class NotPossible(Exception):
    """A step cannot be done on this machine."""


def run(*command: str, **options: Any) -> str:
    """Run a command to its end.

    Returns:
        What it writes to standard output.

    Raises:
        RuntimeError: It ended with another code than 0.
    """
    done = subprocess.run(
        command, check=False, text=True, capture_output=True, timeout=LIMIT_S, **options
    )
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise RuntimeError(f"{' '.join(command[:8])} ... ended with {done.returncode}:\n{said}")
    return str(done.stdout)


def need(*programs: str) -> None:
    """Raise NotPossible unless we are root and have these programs."""
    if os.geteuid() != 0:
        raise NotPossible("root is needed")
    for each in programs:
        if shutil.which(each) is None:
            raise NotPossible(f"there is no {each}")


def copy_sources(context: Path) -> str:
    """Copy what is sent to the builder: others may be working on the sources."""
    shutil.rmtree(context, ignore_errors=True)
    wanted = (ROOT / ".dockerignore").read_text().splitlines()
    names = [line.removeprefix("!") for line in wanted if line.startswith("!")]
    for name in ("Dockerfile", ".dockerignore", *names):
        source, target = ROOT / name, context / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        else:
            shutil.copy2(source, target)
    return f"{len(names)} files and folders"


def get_wheels() -> str:
    """Fetch what pip will ask for, at the versions of constraints.txt."""
    WHEELS.mkdir(parents=True, exist_ok=True)
    file = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*file["project"]["dependencies"], *file["dependency-groups"]["compile"]]
    pip = (sys.executable, "-m", "pip", "download", "-q", "-c", "constraints.txt")
    run(*pip, "--only-binary=:all:", "-d", str(WHEELS), *wanted, cwd=ROOT)
    return f"{len(list(WHEELS.iterdir()))} packages"


def make_root(root: Path) -> None:
    """Make BASE or BUILDER, a small Debian with Python, unless it is there."""
    need("debootstrap")
    if not (root / ".ready").exists():
        shutil.rmtree(root, ignore_errors=True)
        root.parent.mkdir(parents=True, exist_ok=True)
        packages = _PACKAGES[root]
        run("debootstrap", "--variant=minbase", f"--include={packages}", RELEASE, str(root))
        (root / "etc" / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
        (root / ".ready").touch()
