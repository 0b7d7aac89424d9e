"""Asks Docker whether it can start a stack."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from lb.generate.compose import models_of
from lb.generate.stack import Stack

_TIMEOUT_S: Final = 30.0
"""A Docker daemon that is started by its socket takes a few seconds."""


def what_is_missing(stack: Stack, folder: Path) -> str:
    """Return in one line what has to be there before a stack starts, and how to get it; empty if
    nothing is missing.

    Args:
        stack: to be started.
        folder: of its Compose file.
    """
    image = stack.options.balancer_image
    models = folder / models_of(stack)
    if not _succeeds("docker", "--version"):
        return "Docker is missing: install it (https://docs.docker.com/engine/install/)"
    if not _succeeds("docker", "compose", "version"):
        return (
            "Docker has no Compose plugin: install the package docker-compose-plugin "
            "(https://docs.docker.com/compose/install/linux/)"
        )
    if not _succeeds("docker", "info"):
        return (
            "Docker does not answer: start it (sudo systemctl start docker), or join its group "
            "(sudo usermod -aG docker $USER)"
        )
    # Docker pulls images of a registry or of an account by itself.
    if "/" not in image and not _succeeds("docker", "image", "inspect", image):
        return (
            f"the image {image} is missing: build it in the source tree of triton-lb "
            f"(docker build --tag {image} .), or name another one (--lb-image)"
        )
    if not models.is_dir():
        return f"the folder of the models is missing: make {models}, or name another one (--models)"
    return ""


def _succeeds(*command: str) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
