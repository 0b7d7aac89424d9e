"""Ask for known vulnerabilities of the pinned packages, and write the bill of materials.

    python tools/audit.py TOOLS_VENV OUTPUT

Run with the Python of the product's environment. OUTPUT gets `sbom.json` (CycloneDX) of what the
installed product needs to run. Exits 1 when an advisory concerns a pinned package; a registry
without advisories is said, and is no failure.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

_PRODUCT = "triton-lb"
_CONSTRAINTS = Path("constraints.txt")
_LIMIT_S = 300.0


def runtime_packages(name: str) -> dict[str, str]:
    """Installed versions of everything that `name` needs without its extras, by name."""
    found: dict[str, str] = {}
    waiting = [name]
    while waiting:
        for line in metadata.requires(waiting.pop()) or ():
            requirement = Requirement(line)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            if requirement.name not in found:
                found[requirement.name] = metadata.version(requirement.name)
                waiting.append(requirement.name)
    return found


def write_bill(tools: Path, output: Path) -> None:
    """Write `sbom.json`, valid and the same for the same versions."""
    pins = output / "requirements.txt"
    packages = sorted(runtime_packages(_PRODUCT).items(), key=lambda item: item[0].lower())
    pins.write_text("".join(f"{name}=={version}\n" for name, version in packages))
    bill = output / "sbom.json"
    command = [tools / "bin" / "cyclonedx-py", "requirements", "--pyproject", "pyproject.toml"]
    command += ["--output-reproducible", "--validate", "--of", "JSON", "-o", bill, pins]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    components = len(json.loads(bill.read_text())["components"])
    print(f"bill of materials: {components} components in {bill}")


def advisories(tools: Path) -> list[dict[str, Any]]:
    """What the registry says about each pinned package; empty when it cannot be asked."""
    command = [tools / "bin" / "pip-audit", "--no-deps", "--disable-pip", "-f", "json"]
    command += ["--progress-spinner", "off", "-r", _CONSTRAINTS]
    done = subprocess.run(
        [str(part) for part in command],
        check=False, capture_output=True, text=True, timeout=_LIMIT_S,
    )  # fmt: skip
    try:
        answer: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    except json.JSONDecodeError:
        return []
    return answer["dependencies"]


def main(arguments: list[str]) -> int:
    """Audit and write. Returns the exit code."""
    tools, output = map(Path, arguments)
    output.mkdir(parents=True, exist_ok=True)
    write_bill(tools, output)
    known = [package for package in advisories(tools) if "vulns" in package]
    if not known:
        print("advisories: the registry has none to ask for; nothing was audited")
        return 0
    bad = [package for package in known if package["vulns"]]
    for package in bad:
        for advisory in package["vulns"]:
            fixed = ", ".join(advisory["fix_versions"]) or "no release yet"
            print(f"{package['name']} {package['version']}: {advisory['id']}, fixed in {fixed}")
    print(f"advisories: {len(known)} packages audited, {len(bad)} with known vulnerabilities")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
