"""Writes what a release consists of: `python -m deploy.release DIRECTORY`, as `make release` calls it.

An sdist and the wheel that is built from it, both looked through by twine and check-wheel-contents; a list of what an
installation by constraints/cpu.txt holds (CycloneDX); the changelog's section; sums over all of these.
"""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
TOOLS = REPO / "build" / "release" / "bin"
PIP = (sys.executable, "-m", "pip")


def main(into: Path) -> int:
    """Raises CalledProcessError where a step fails; what is there then is no release. The directory must be new."""
    into.mkdir(parents=True)
    run(str(TOOLS / "python"), "-m", "build", "--outdir", str(into), str(REPO))
    (wheel,), (sdist,) = into.glob("*.whl"), into.glob("*.tar.gz")
    run(str(TOOLS / "twine"), "check", "--strict", str(wheel), str(sdist))
    run(str(TOOLS / "check-wheel-contents"), str(wheel))
    _write_parts(wheel, into / "sbom.cdx.json")
    version = wheel.name.split("-")[1]
    (into / "CHANGES.md").write_text(section((REPO / "CHANGELOG.md").read_text("utf-8"), version), "utf-8")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(into.iterdir())]
    (into / "SHA256SUMS").write_text("".join(sums), "ascii")
    print("".join(sums), end="")
    if "+" in version:
        print(
            f"{version} is no release: the tree is not clean at the tag v{version.partition('+')[0]}", file=sys.stderr
        )
    return 0


def section(changelog: str, version: str) -> str:
    """What the changelog says of a version, a local part of it left out. Raises ValueError where it says nothing."""
    number = version.partition("+")[0]
    found = re.search(rf"^## \[{re.escape(number)}\].*?(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"CHANGELOG.md has no section of {number}")
    return found[0].rstrip() + "\n"


def _write_parts(wheel: Path, into: Path) -> None:
    """By pip's own resolver: the wheel and all that it would bring along, at the pinned versions."""
    asked = ("install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-")
    report = json.loads(run(*PIP, *asked, "--constraint", str(REPO / "constraints/cpu.txt"), str(wheel)))
    parts = [one["metadata"] for one in report["install"] if one["metadata"]["name"] != "pixelferry"]
    pins = sorted(f"{one['name']}=={one['version']}" for one in parts)
    command = (str(TOOLS / "cyclonedx-py"), "requirements", "--output-reproducible", "-o", str(into), "-")
    run(*command, given="\n".join(pins))


def run(*command: str, given: str = "") -> str:
    """What the command printed."""
    return subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
