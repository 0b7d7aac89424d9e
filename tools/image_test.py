"""Builds the container image and starts it, as far as that can be done without a container engine.

    make image-test

Debian's debootstrap makes a base with Python, buildah builds the Dockerfile on it (isolation by
chroot), and the image's own start command runs in a clean root: namespaces of its own, a read-only
root file system, a user without any capability. Packages come from a folder that is filled before,
so that the build itself asks nobody. Says of each step whether it was done; needs root.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from base_image import (
    BASE,
    BUILDER,
    BUILDER_ENV,
    FOLDER,
    RELEASE,
    ROOT,
    WHEELS,
    NotPossible,
    copy_sources,
    get_wheels,
    make_root,
    need,
    run,
)

IMAGE = "localhost/triton-lb"
BASE_IMAGE, BUILDER_IMAGE = f"{IMAGE}-base", f"{IMAGE}-compiler"
CONTEXT = FOLDER / "context"
UID = 10001
BUILDAH = (
    "buildah",
    "--storage-driver=vfs",
    f"--root={FOLDER / 'storage'}",
    f"--runroot={FOLDER / 'run'}",
)
CLEAN_ROOT = """
set -e
root="$1" user="$2"
shift 2
ip link set lo up
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount --bind /dev "$root/dev"
mount -t proc proc "$root/proc"
exec chroot "$root" /usr/bin/setpriv --reuid "$user" --regid "$user" --clear-groups \\
  --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""


# Steps


def make_bases() -> str:
    """Make small Debians with Python, in place of the official images."""
    need("buildah")
    there = run(*BUILDAH, "images", "--format", "{{.Name}}").split()
    for root, image in ((BASE, BASE_IMAGE), (BUILDER, BUILDER_IMAGE)):
        make_root(root)
        if image in there:
            continue
        container = run(*BUILDAH, "from", "scratch").strip()
        run(*BUILDAH, "copy", "-q", container, str(root), "/")
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        run(*BUILDAH, "config", "--env", path, "--env", BUILDER_ENV, container)
        run(*BUILDAH, "commit", "-q", "--rm", container, image)
    return f"Debian {RELEASE}"


def build(name: str, *options: str) -> str:
    """The Dockerfile, step by step. Returns the image."""
    need("buildah")
    image = f"{IMAGE}:{name}"
    run(
        *(*BUILDAH, "build", "--isolation=chroot", "--format=docker"),
        *("--build-arg", f"BASE={BASE_IMAGE}", "--build-arg", f"BUILDER={BUILDER_IMAGE}"),
        *("--volume", f"{WHEELS}:/wheels:ro"),
        *(*options, "-t", image, "."),
        cwd=CONTEXT,
    )
    return image


def check_configuration() -> str:
    """What an engine would be told."""
    found = config_of("test")
    expected = {
        "User": f"{UID}:{UID}",
        "Entrypoint": ["triton-lb"],
        "Cmd": ["serve", "--config", "/etc/triton-lb/triton-lb.yaml"],
        "StopSignal": "SIGTERM",
        "ExposedPorts": {f"{port}/tcp": {} for port in (8000, 8001, 8002)},
    }
    for key, value in expected.items():
        if found[key] != value:
            raise RuntimeError(f"{key} is {found[key]}, not {value}")
    build("root", "--build-arg", "UID=0", "--build-arg", "COMPILE=0")
    if config_of("root")["User"] != "0:0":
        raise RuntimeError("the build argument UID does nothing")
    if list((root_of("root") / "opt/triton-lb").rglob("lb/**/*.so")):
        raise RuntimeError("the build argument COMPILE does nothing")
    return f"user {found['User']}; 0:0 with UID=0, sources alone with COMPILE=0"


def config_of(name: str) -> dict[str, Any]:
    """How an image wants to be run."""
    told = json.loads(run(*BUILDAH, "inspect", "--type", "image", f"{IMAGE}:{name}"))
    found: dict[str, Any] = told["Docker"]["config"]
    return found


def compare_builds() -> str:
    """The same sources give the same files."""
    build("again", "--no-cache")
    first, second = digests(root_of("test")), digests(root_of("again"))
    differing = sorted(path for path in {*first, *second} if first.get(path) != second.get(path))
    if differing:
        raise RuntimeError(f"{len(differing)} files differ, such as {differing[:5]}")
    return f"{len(first)} files are the same in a second build"


def check_content() -> str:
    """Nothing that builds, nothing that was only needed to build."""
    root = root_of("test")
    installed = {path.name for path in (root / "opt/triton-lb/lib").rglob("site-packages/*")}
    surplus = installed & {"pip", "setuptools", "wheel"}
    surplus |= {name for name in ("gcc", "cc", "make", "git") if (root / "usr/bin" / name).exists()}
    if surplus or (root / "src").exists():
        raise RuntimeError(f"left over: {sorted(surplus) or 'the sources'}")
    return run("du", "-sh", str(root / "opt/triton-lb")).split()[0] + " beside the base"


def start() -> str:
    """The image's own command, and a simulated Triton, in a clean root."""
    need("unshare", "setpriv", "ip", "chroot")
    config = config_of("test")
    plan = {
        "uid": UID,
        "command": [*config["Entrypoint"], *config["Cmd"]],
        "health": config["Healthcheck"]["Test"][1:],
    }
    environment = dict(each.split("=", 1) for each in config["Env"])
    space = ("unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child")
    clean = ("sh", "-c", CLEAN_ROOT, "clean-root", str(root_of("test")), str(UID))
    said = run(
        *(*space, *clean, "python3", "-", json.dumps(plan)),
        input=(ROOT / "tools" / "image_probe.py").read_text(),
        # Of the host, that finds `unshare`; the image's own goes before.
        env={**environment, "PATH": f"{environment['PATH']}:{os.environ['PATH']}"},
    )
    return said.strip()


def digests(root: Path) -> dict[str, str]:
    """What is in the files of the product."""
    paths = [*(root / "opt/triton-lb").rglob("*"), *(root / "etc/triton-lb").rglob("*")]
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path.is_file() and not path.is_symlink()
    }


def root_of(name: str) -> Path:
    """The root file system of an image."""
    container = f"triton-lb-{name}"
    known = run(*BUILDAH, "containers", "--format", "{{.ContainerName}}").split()
    if container not in known:
        run(*BUILDAH, "from", "--name", container, f"{IMAGE}:{name}")
    return Path(run(*BUILDAH, "mount", container).strip())


def clear() -> None:
    """Remove containers and images but for the base: each takes some hundred megabytes."""
    if shutil.which("buildah") and os.geteuid() == 0 and (FOLDER / "storage").exists():
        run(*BUILDAH, "rm", "--all")
        images = run(*BUILDAH, "images", "--quiet", "--filter", f"reference={IMAGE}").split()
        if images:
            run(*BUILDAH, "rmi", "--force", *dict.fromkeys(images))
        run(*BUILDAH, "rmi", "--prune", "--force")


STEPS = (
    ("sources are copied", lambda: copy_sources(CONTEXT)),
    ("packages are fetched", get_wheels),
    ("base images are made with debootstrap", make_bases),
    ("the Dockerfile is built with buildah", lambda: build("test")),
    ("the configuration is what engines are to be told", check_configuration),
    ("nothing is left over from the build", check_content),
    ("it starts, serves and ends in a clean root", start),
    ("a second build gives the same", compare_builds),
)
NEVER = (
    ("the C compiler's optimiser", "it takes most of the time"),
    ("the official base image (python:3.11-slim-bookworm)", "a registry would be needed"),
    ("an engine's own start (docker run, containerd)", "make stack-test does that"),
    ("hadolint", "no package has it; tests/deploy/test_image.py has rules of its own"),
)


def main(steps: Sequence[tuple[str, Any]] = STEPS) -> int:
    """Do all steps; the first that cannot be done, or fails, ends it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    clear()
    code = 0
    for number, (what, step) in enumerate(steps):
        try:
            print(f"ran      {what}: {step()}", flush=True)
        except (NotPossible, RuntimeError, subprocess.TimeoutExpired) as error:
            word = "not run" if isinstance(error, NotPossible) else "FAILED"
            code = 0 if isinstance(error, NotPossible) else 1
            print(f"{word:8} {what}: {error}")
            for later, _ in steps[number + 1 :]:
                print(f"not run  {later}")
            break
    clear()
    for what, why in NEVER:
        print(f"not run  {what}: {why}")
    return code


if __name__ == "__main__":
    sys.exit(main())
