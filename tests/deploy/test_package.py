"""The distributions and what makes them agree about versions and names."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FILE = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: dict[str, Any] = FILE["project"]
GROUPS: dict[str, list[Any]] = FILE["dependency-groups"]
PREFIX = "Programming Language :: Python :: "
VERSIONS = [name for each in PROJECT["classifiers"] if "." in (name := each.removeprefix(PREFIX))]


def test_the_versions_that_are_classified_are_built_and_tried() -> None:
    assert VERSIONS
    words = " ".join(VERSIONS)
    assert f"readonly VERSIONS=({words})" in (ROOT / "tools/make_dist.sh").read_text()
    assert f"for version in {words};" in (ROOT / "tools/release_check.sh").read_text()
    workflow = yaml.safe_load((ROOT / ".github/workflows/wheels.yml").read_text())
    (build,) = [step for step in workflow["jobs"]["compiled"]["steps"] if "env" in step]
    tags = " ".join(f"cp{version.replace('.', '')}-manylinux*" for version in VERSIONS)
    assert build["env"]["CIBW_BUILD"] == tags
    assert PROJECT["requires-python"] == f">={VERSIONS[0]}"


def test_the_sdist_holds_what_it_is_built_with() -> None:
    backend = Path(*FILE["build-system"]["backend-path"]) / "build_backend.py"
    included = (ROOT / "MANIFEST.in").read_text().split()
    assert str(backend) in included
    assert all((ROOT / name).exists() for name in included if "." in Path(name).name.strip("."))


@pytest.mark.parametrize("repository", ["", "https://example.org/owner/triton-lb"])
def test_the_page_on_an_index_has_no_dead_link(repository: str, tmp_path: Path) -> None:
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    told = [repository] if repository else []
    subprocess.run([sys.executable, ROOT / "tools/index_page.py", tmp_path, *told], check=True)
    page = (tmp_path / "README.md").read_text()
    assert "\npip install triton-lb\n" in page
    links = re.findall(r"\]\(([^)]*)\)", page)
    assert bool(links) == bool(repository)
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"].get("urls", {})
    assert ("Changelog" in urls) == bool(repository)
    for link in (*links, *urls.values()):
        assert link.startswith(repository)
        place, _, path = link.removeprefix(repository).partition(f"/v{PROJECT['version']}/")
        assert place in ("", "/blob", "/raw")
        assert (ROOT / path.partition("#")[0]).exists()


@pytest.mark.parametrize("group", ["project", *GROUPS])
def test_every_requirement_has_one_pinned_version(group: str) -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    pinned = {canonicalize_name(pin.name) for pin in pins}
    wanted = PROJECT["dependencies"] if group == "project" else GROUPS[group]
    names = {canonicalize_name(Requirement(each).name) for each in wanted if isinstance(each, str)}
    assert names <= pinned


def test_examples_name_the_version() -> None:
    version = PROJECT["version"]
    texts = [(ROOT / "Dockerfile").read_text()]
    texts += [path.read_text() for path in (ROOT / "deploy").rglob("*") if path.is_file()]
    tags = re.findall(r"triton-lb:(\d[\w.]*)|newTag: (\d[\w.]*)", "\n".join(texts))
    assert tags
    assert {one or other for one, other in tags} == {version}


def test_the_changelog_tells_the_version_or_what_is_not_released() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased" or headings[0].startswith(f"{PROJECT['version']} ")
