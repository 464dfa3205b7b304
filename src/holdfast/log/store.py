"""Choose a store by its URL, and check the names that become paths.

Invariants:
    * A checked path is relative, has no empty, `.` or `..` part, and so never leaves the store's folder.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from holdfast.errors import NameInvalid, StoreUnfit
from holdfast.ports import Store

NAME_LENGTH_MAX: Final = 128

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


def is_name(name: str) -> bool:
    """Return whether `name` may become a part of a path."""
    return len(name) <= NAME_LENGTH_MAX and _NAME.fullmatch(name) is not None


def number_of(name: str, suffix: str = "") -> int | None:
    """Return the number that a file is named by, None where it is not: the file is not one of ours then."""
    text = name.removesuffix(suffix)
    is_number = name.endswith(suffix) and text.isascii() and text.isdigit()
    return int(text) if is_number else None


def validate_name(name: str) -> str:
    """Return `name` if it may become a part of a path, else raise `NameInvalid`."""
    if isinstance(name, str) and is_name(name):
        return name
    raise NameInvalid(
        f"the name {name!r} cannot become a file name: expected 1 to {NAME_LENGTH_MAX} letters (a-z, A-Z), digits, "
        "'_', '-' or '.', not beginning with '-' or '.'; choose another name"
    )


def validate_path(path: str) -> str:
    """Return `path` if all of its parts are valid names, else raise `NameInvalid`."""
    for part in path.split("/"):
        validate_name(part)
    return path


def open_store(url: str) -> Store:
    """Return the store at a file path or `file://` URL; it makes its folder when the first file is written."""
    from holdfast.log.local_store import LocalStore

    parts = urlsplit(url)
    # One letter before a colon is not a scheme that anybody has.
    if not parts.scheme or len(parts.scheme) == 1:
        return LocalStore(Path(url).expanduser())
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise StoreUnfit(
                f"the store {url!r} names the host {parts.netloc!r}: a file URL has three slashes, as in "
                "file:///data/store"
            )
        return LocalStore(Path(unquote(parts.path)))
    raise StoreUnfit(
        f"the store {url!r} has the scheme {parts.scheme!r}: this version of holdfast keeps streams in local folders "
        "only (HDFS and S3-compatible stores come later); give a path, or a file:// URL, that all executors share"
    )
