"""Roots and the paths below them: directories on local disks, or URIs of object stores."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from urllib.parse import unquote, urlparse, urlsplit

from lakequeue.errors import InvalidParameterValue, QueueClientError
from lakequeue.model.secrets import STORES, hidden
from lakequeue.storage.providers import PROVIDERS, scheme_named

# delta-rs decodes %20, panics at some of these, and refuses others.
_REFUSED = re.compile(r"[\x00-\x1f\x7f\\\[\]|^]|%[0-9A-Fa-f]{2}")

EFFECTIVE = os.access in os.supports_effective_ids


def root_of(root: str | os.PathLike[str]) -> str:
    """Returns a root as an absolute path or a URI without trailing slash. Raises InvalidParameterValue."""
    text = os.fspath(root) if isinstance(root, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text.strip():
        raise _refused(root, "Must be a path or URI")
    if text.startswith("file:"):
        parts = urlsplit(text, allow_fragments=False)
        if parts.netloc not in ("", "localhost"):
            raise _refused(text, f"{parts.netloc.rpartition('@')[2]} is another machine")
        text = unquote(parts.path)
    elif re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", text):
        return _remote(text)
    elif match := re.match(rf"([A-Za-z][A-Za-z0-9+.-]+):/|({'|'.join(STORES)}|https?):", text, re.IGNORECASE):
        scheme = match[1] or match[2]
        known = scheme_named(scheme) in PROVIDERS
        raise _refused(text, f"a URI begins with {scheme}://" if known else _unknown(f"{scheme}:/"))
    elif text[0] in "~$":
        raise _refused(text, f"nothing expanded {text[0]}, as a shell does without quotes; give the whole path")
    path = os.path.abspath(text)
    found = _REFUSED.search(path)
    if found:
        raise _refused(path, f"the directory's name must not have {found[0]!r} in it")
    return path


def _remote(uri: str) -> str:
    scheme, _, rest = uri.partition("://")
    scheme = scheme_named(scheme)
    uri = f"{scheme}://{re.split('[?#]', rest)[0]}"
    place = uri.partition("://")[2].lstrip("/").partition("/")[0]
    provider = PROVIDERS.get(scheme)
    has_user = "@" in place and (provider is None or not provider.has_container or place.count("@") > 1)
    if has_user or (provider is not None and ":" in place):
        raise _refused(uri, "keys are no part of a URI; give them as storage_options")
    if provider is None:
        raise _refused(uri, _unknown(f"{scheme}://"))
    if not rest.strip("/"):
        raise _refused(uri, "the bucket is missing")
    found = _REFUSED.search(rest) or re.search(r"[?#]", rest)
    if found:
        raise _refused(uri, f"the name must not have {found[0]!r} in it")
    return f"{scheme}://" + "/".join(name for name in rest.split("/") if name)


def obstacle(path: str) -> str | None:
    """Returns why a local path cannot be a root, or None if it can. The path need not exist."""
    above = path
    while True:
        try:
            mode = os.stat(above).st_mode
        except (FileNotFoundError, NotADirectoryError):
            above = os.path.dirname(above)
            continue
        except PermissionError:
            return f"{path} cannot be reached: user {os.geteuid()} may not look into {os.path.dirname(above)}"
        if not stat.S_ISDIR(mode):
            return f"{path} cannot be a root: {above} is a file, not a directory"
        if above == path and not os.access(path, os.R_OK | os.X_OK, effective_ids=EFFECTIVE):
            return f"{path} cannot be read: user {os.geteuid()} has no right to; its mode is {mode & 0o7777:o}"
        return None


def unsafe_owner(path: str, parts: Iterable[str]) -> str | None:
    """Returns a text if other users own a part of a local root, or may write to it. Returns None if it is safe."""
    if not os.path.isdir(path):
        return None
    root = os.stat(path)
    if root.st_mode & 0o022 == 0o020:
        return None
    for part in (f"{path}/{name}" for name in parts):
        with suppress(FileNotFoundError):
            found = os.stat(part)
            if found.st_uid not in (0, os.geteuid(), root.st_uid):
                return f"{path} cannot be used: user {found.st_uid} owns {part}, and could change all of it"
            if root.st_mode & 0o001 and found.st_mode & 0o002:
                return f"{path} cannot be used: everybody may change {part}, mode {found.st_mode & 0o7777:o}"
    return None


def make_directory(path: str, mode: int) -> None:
    """Creates the directory of a new root. Raises QueueClientError if another user could replace it."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    owner = os.stat(path).st_uid
    if owner not in (0, os.geteuid()) and not mode & 0o070:
        raise QueueClientError(
            f"{missing[0] if missing else path} would be at the mercy of user {owner}, who owns {path}; change "
            "the owner, choose another place, or share the root with a group by root_mode"
        )
    for above in reversed(missing):
        with suppress(FileExistsError):  # Another process was first.
            os.mkdir(above, 0o700 if above is not missing[0] else mode & 0o700)


@lru_cache(maxsize=4096)  # Each commit calls it several times.
def local_path(uri: str) -> str | None:
    """Returns the local path for a path or URI. Returns None for an object store."""
    parsed = urlparse(uri)
    if parsed.scheme == "file":
        return unquote(parsed.path)
    return uri if parsed.scheme == "" or len(parsed.scheme) == 1 else None


def is_local_folder(uri: str) -> bool:
    """True if a path or URI is an existing local directory."""
    local = local_path(uri)
    return local is not None and os.path.isdir(local)


def spark_uri(path: str) -> str:
    """Returns a path as a complete URI, so that Spark does not use its default file system."""
    local = local_path(path)
    if local is not None:
        return f"file://{os.path.abspath(local)}"
    scheme, _, rest = path.partition("://")
    return f"{PROVIDERS[scheme].hadoop_scheme}://{rest}" if scheme in PROVIDERS else path


def _unknown(scheme: str) -> str:
    return f"unsupported scheme {scheme}; use a path, {', '.join(f'{name}://' for name in PROVIDERS)}"


def _refused(root: object, reason: str) -> InvalidParameterValue:
    return InvalidParameterValue.of(hidden(repr(root)), "root", f"{reason}.")


def is_inside(place: str, root: str) -> bool:
    """True if a path or URI is the root, is inside it, or contains it."""
    paths = [local_path(each) for each in (place, root)]
    if None in paths:
        first, second = place.rstrip("/"), root.rstrip("/")
    else:
        first, second = (os.path.realpath(path or "").rstrip("/") for path in paths)
    return f"{first}/".startswith(f"{second}/") or f"{second}/".startswith(f"{first}/")
