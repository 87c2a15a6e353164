"""Roots: the directory or URI that a user names, in the one form that the rest of the package uses."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from lakequeue.errors import InvalidParameterValue

# delta-rs decodes %20, panics at some of these and refuses others
_REFUSED = re.compile(r"[\x00-\x1f\x7f\\\[\]|^]|%[0-9A-Fa-f]{2}")


def root_of(given: str | os.PathLike[str]) -> str:
    """An absolute local path, or the URI of remote storage, without a slash at its end.

    Raises:
        InvalidParameterValue: the tables' libraries cannot work below such a directory.
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


def _refused(root: str, reason: str) -> InvalidParameterValue:
    return InvalidParameterValue.of(repr(root), "root", f"{reason}.")
