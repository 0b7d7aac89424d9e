"""Generated manifests are ones that the API of Kubernetes takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lb.cli.check import check
from lb.cli.main import main
from tests.deploy.listings import FOLDER, LISTINGS
from tests.fakes.manifests import render, validate


@pytest.mark.parametrize("options", [(), ("--server", "tfserving", "--lb-image", "mine:1")])
@pytest.mark.parametrize("listing", LISTINGS)
def test_a_generated_stack_is_valid(listing: str, options: tuple[str, ...], tmp_path: Path) -> None:
    source = ["--from", str(FOLDER / f"{listing}.txt"), "--output", str(tmp_path)]
    assert main(["generate", "kubernetes", *source, *options]) == 0
    manifests = render(tmp_path)
    for manifest in manifests:
        validate(manifest)
    named = {(each["kind"], each["metadata"]["name"]) for each in manifests}
    sources = yaml.safe_load((tmp_path / "triton-lb.yaml").read_text())["discovery"]["kubernetes"]
    assert {("Service", source["service"]) for source in sources} <= named
    assert {("Deployment", "triton-lb"), ("ConfigMap", "triton-lb")} <= named
    assert check(str(tmp_path / "triton-lb.yaml")) == 0
