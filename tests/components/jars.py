"""The jars of what the integration tests start, fetched once with Maven into the user's cache folder.

    python -m tests.components.jars

Invariants:
    * Versions are those of `pom.xml` beside this file; another pom gives another folder.
    * A folder that is there is whole: it is filled beside its name and then renamed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

POM = Path(__file__).with_name("pom.xml")
NEED_MAVEN = (
    "the integration tests start real systems, whose jars Maven fetches, and there is no `mvn` on the PATH: install "
    "Maven 3.6 or newer (on Debian: apt-get install maven)"
)


class Missing(Exception):
    """What has to be there before a component can start; the message says what to do."""


def cache() -> Path:
    """Return where the jars are or will be."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    version = hashlib.sha256(POM.read_bytes()).hexdigest()[:16]
    return Path(base) / "holdfast" / f"components-{version}"


def jars_of(part: str) -> list[Path]:
    """Return the jars of `broker` or `connector`."""
    found = sorted((cache() / part).glob("*.jar"))
    if not found:
        raise Missing(f"the jars of the {part} are not in {cache()}: run `python -m tests.components.jars` first")
    return found


def fetch() -> Path:
    """Fetch what is missing, and return the folder."""
    folder = cache()
    if folder.exists():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise Missing(NEED_MAVEN)
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        command = [maven, "-q", "-B", "-f", str(POM), "process-resources", f"-Dfolder={beside}"]
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if ran.returncode != 0:
            errors = [line for line in (ran.stdout + ran.stderr).splitlines() if "ERROR" in line]
            raise Missing(f"Maven could not fetch the jars of {POM}: {errors[0] if errors else ran.stderr.strip()}")
        if not folder.exists():
            beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def main() -> None:
    try:
        print(fetch())
    except Missing as missing:
        sys.exit(f"holdfast: {missing}")


if __name__ == "__main__":
    main()
