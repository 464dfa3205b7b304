"""Send this package to executors that do not have it.

Guarantees:
    * What executors run is what the driver runs: the very files, in an archive that Spark unpacks beside each executor.
    * Compiled kernels are kept on each host: the files are copied to a folder of the user's that is named by their
      content, and the daemon goes on from there, so that only the first executor of a host compiles.

The packages that holdfast needs (numpy, pyarrow, numba, msgspec and the others) have to be there: they are not pure
Python. `spark.archives` with a packed environment brings those too.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import holdfast
from holdfast.spark.jvm import cache_folder

if TYPE_CHECKING:
    from pyspark import SparkContext

FOLDER: Final = "holdfast_package"
"""Where Spark unpacks the archive, in an executor's working folder."""
VARIABLE: Final = "HOLDFAST_SHIPPED"
"""The content's name, in the environment of a daemon that runs from the archive."""
_PACKAGES: Final = ("holdfast", "pyspark_holdfast")
_MISSING: Final = re.compile(r"No module named '?holdfast|Error while finding module specification for 'holdfast")


def is_missing(why: str) -> bool:
    """Return whether a job failed because the executor does not have this package."""
    return bool(_MISSING.search(why))


def ship(context: SparkContext) -> None:
    """Give the package to the executors of a session; Python functions made from now on find it there."""
    folder = tempfile.mkdtemp(prefix="holdfast-ship-")
    # Spark reads it whenever an executor comes.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive, name = pack(Path(folder))
    context.addArchive(f"{archive}#{FOLDER}")
    path = [FOLDER, *filter(None, [context.environment.get("PYTHONPATH")])]
    context.environment["PYTHONPATH"] = os.pathsep.join(path)
    context.environment[VARIABLE] = name


def pack(folder: Path) -> tuple[Path, str]:
    """Write the archive into a folder; return it and the name of its content."""
    root = Path(holdfast.__file__).resolve().parent.parent
    files = sorted(
        file
        for package in _PACKAGES
        for file in (root / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    )
    digest = hashlib.sha256()
    archive = folder / "holdfast.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for file in files:
            name, content = str(file.relative_to(root)), file.read_bytes()
            digest.update(f"{name} {len(content)}\n".encode() + content)
            target.writestr(name, content)
    return archive, digest.hexdigest()[:24]


def settle() -> None:
    """In a daemon that runs from the archive: copy the files to their own place and go on from there; else nothing.

    Never returns where it goes on: the process becomes one that runs the same module from the other folder.
    """
    name = os.environ.get(VARIABLE, "")
    here = Path(holdfast.__file__).resolve().parent.parent
    if not re.fullmatch("[0-9a-f]{24}", name) or here.name != FOLDER:
        return
    home = cache_folder() / "packages" / name
    try:
        if not home.is_dir():
            home.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            copy = Path(tempfile.mkdtemp(dir=home.parent))
            shutil.copytree(here, copy / "files", ignore=shutil.ignore_patterns("__pycache__"))
            try:
                (copy / "files").rename(home)
            finally:
                shutil.rmtree(copy, ignore_errors=True)
    except OSError:
        if not home.is_dir():
            # Without a place of its own it runs where it is, and compiles for itself.
            return
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [path for path in paths if Path(path).name != FOLDER]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(home), *kept])
    os.execv(sys.executable, [sys.executable, "-m", "holdfast.spark.daemon", *sys.argv[1:]])
