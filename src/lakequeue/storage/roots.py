"""Roots and the paths below them: directories on local disks, or URIs of remote storage."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlparse, urlsplit

from lakequeue.errors import InvalidParameterValue

# delta-rs decodes %20, panics at some of these and refuses others
_REFUSED = re.compile(r"[\x00-\x1f\x7f\\\[\]|^]|%[0-9A-Fa-f]{2}")


def root_of(given: str | os.PathLike[str]) -> str:
    """The root that a user names, as an absolute local path or a URI, without a trailing slash.

    Raises:
        InvalidParameterValue: the libraries below cannot work in such a directory.
    """
    text = os.fspath(given)
    if text.startswith("file:"):
        parts = urlsplit(text, allow_fragments=False)
        if parts.netloc not in ("", "localhost"):
            raise _refused(text, f"{parts.netloc} is another machine")
        text = unquote(parts.path)
    elif re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", text):
        return text.rstrip("/")
    path = os.path.abspath(text)
    found = _REFUSED.search(path)
    if found:
        raise _refused(path, f"the directory's name must not have {found[0]!r} in it")
    return path


def local_path(uri: str) -> str | None:
    """The path that a local URI or path names, None for remote storage."""
    parsed = urlparse(uri)
    if parsed.scheme == "file":
        return unquote(parsed.path)
    return uri if parsed.scheme == "" or len(parsed.scheme) == 1 else None


def spark_uri(path: str) -> str:
    """A path as a URI that means the same whatever Spark's default file system is."""
    local = local_path(path)
    return f"file://{os.path.abspath(local)}" if local is not None else path


def _refused(root: str, reason: str) -> InvalidParameterValue:
    return InvalidParameterValue.of(repr(root), "root", f"{reason}.")
