"""List the files of a folder or pattern that a source may take.

Invariants:
    * Names that begin with `_` or `.`, or that end as temporary files do, are never listed.
    * A file that goes away while the folder is listed is not an error.
"""

from __future__ import annotations

import glob
import os
import stat

from holdfast.errors import Misconfigured

_UNFINISHED = (".tmp", ".crc", ".inprogress", "_COPYING_")


def check_path(path: str) -> None:
    """Raise `Misconfigured` where no file could ever come."""
    if "://" in path and not path.startswith("file://"):
        scheme = path.partition("://")[0]
        raise Misconfigured(f"files at {path!r}: {scheme} is not read; expected a local path or file://.")
    if not glob.has_magic(path) and not os.path.exists(local_path(path)):
        raise Misconfigured(f"files at {path!r}: no such file or folder. Create it, or correct the path.")


def local_path(path: str) -> str:
    """Return the absolute path of a local path or a `file://` URL."""
    return os.path.abspath(path.removeprefix("file://"))


def listed(path: str) -> list[tuple[str, int, int]]:
    """Return (path, size, modification time) of every file that may be taken."""
    path = local_path(path)
    if os.path.isdir(path):
        try:
            with os.scandir(path) as entries:
                paths = [entry.path for entry in entries]
        except PermissionError as error:
            raise Misconfigured(
                f"files at {path!r} cannot be listed: {error}. Let this user read the folder."
            ) from error
    else:
        paths = glob.glob(path) if glob.has_magic(path) else [path]
    found = []
    for each in paths:
        name = os.path.basename(each)
        if name.startswith(("_", ".")) or name.endswith(_UNFINISHED):
            continue
        try:
            status = os.stat(each)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(status.st_mode):
            found.append((each, status.st_size, status.st_mtime_ns))
    return found
