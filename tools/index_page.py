"""Makes README.md fit for the page of a package index, where a link to a file leads nowhere.

    python tools/index_page.py FOLDER [https://HOST/OWNER/NAME]

Changes README.md and pyproject.toml in FOLDER. With the address of the public repository, links and
pictures lead to the files of this version's tag there, and the project gets its URLs. Without one,
links become plain text, and pictures are left out. The package is installed from the index.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:)([^)]+)\)")
_INSTALL = re.compile(r"^pip install \. .*$", re.MULTILINE)
_URLS = """
[project.urls]
Source = "{repository}"
Documentation = "{files}/docs/README.md"
Changelog = "{files}/CHANGELOG.md"
"""


def without_links(page: str) -> str:
    """Return a page with the words of its links alone."""
    return _LINK.sub(lambda found: "" if found[1] else found[2], page)


def with_links(page: str, repository: str, version: str) -> str:
    """Return a page whose links lead to the files of a version in a repository."""

    def link(found: re.Match[str]) -> str:
        # Hosts show a page around a file unless it is asked for raw.
        kind = "raw" if found[1] else "blob"
        return f"{found[1]}[{found[2]}]({repository}/{kind}/v{version}/{found[3]})"

    return _LINK.sub(link, page)


def main(folder: Path, repository: str = "") -> None:
    """Rewrite the files of a folder."""
    readme, project = folder / "README.md", folder / "pyproject.toml"
    page = _INSTALL.sub("pip install triton-lb", readme.read_text(encoding="utf-8"))
    if not repository:
        readme.write_text(without_links(page), encoding="utf-8")
        return
    text = project.read_text(encoding="utf-8")
    version = tomllib.loads(text)["project"]["version"]
    readme.write_text(with_links(page, repository, version), encoding="utf-8")
    urls = _URLS.format(repository=repository, files=f"{repository}/blob/v{version}")
    project.write_text(text + urls, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
