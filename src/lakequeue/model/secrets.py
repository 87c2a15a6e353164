"""Removes keys, passwords and signatures from URIs in texts."""

from __future__ import annotations

import re
import shlex

STORES = ("s3", "s3a", "s3n", "az", "azure", "adl", "abfs", "abfss", "wasb", "wasbs", "gs", "gcs")
"""URI schemes of object stores. ``hidden`` removes a bucket's name that has a colon: such a text contains keys."""
CONTAINERS = ("az", "azure", "adl", "abfs", "abfss", "wasb", "wasbs")
"""URI schemes for which the text before an ``@`` may be the name of a container."""
_BEGIN = r"(?<![A-Za-z0-9+.-])"
_STORE = rf"{_BEGIN}(?P<store>{'|'.join(STORES)}):(?P<slashes>/*)"
_USER = re.compile(
    rf"(?P<scheme>{_BEGIN}(?:[a-z][a-z0-9+.-]*:/+(?:(?:{'|'.join(STORES)})/)?|(?:{'|'.join(STORES)}|https?):))"
    r"(?P<user>[^\s\"'/@]*:(?!\d+(?:/|$))[^\s\"']*|[^\s\"'/@]*)@",
    re.IGNORECASE,
)
_KEYS = re.compile(rf"{_STORE}[^\s\"'/:@]*:[^\s\"'/]*", re.IGNORECASE)
_QUERY = re.compile(rf"((?:{_BEGIN}[a-z][a-z0-9+.-]*:/|{_STORE})[^\s?\"']*)\?[^\s\"']*", re.IGNORECASE)


def hidden(text: str) -> str:
    """Removes possible secrets from every URI in a text: users, passwords, keys, queries."""
    if ":" not in text:
        return text
    return _KEYS.sub(r"\g<store>:\g<slashes>…", _USER.sub(_without_user, _QUERY.sub(r"\1", text)))


def _without_user(match: re.Match[str]) -> str:
    scheme = match["scheme"].partition(":")[0].lower()
    return match[0] if scheme in CONTAINERS and ":" not in match["user"] else match["scheme"]


def shown_root(root: str) -> str:
    """Removes user, password, key and query from a root's URI. Keeps the container."""
    return hidden(root).partition("?")[0] if "://" in root else root


def command_prefix(root: str, region: str = "local") -> str:
    """Returns the beginning of a shell command for this root and region. Hides secrets."""
    where = "" if region == "local" else f" --region {shlex.quote(region)}"
    return f"lakequeue --root {shlex.quote(shown_root(root))}{where}"
