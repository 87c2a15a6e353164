"""URLs of queues."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from lakequeue.errors import QueueDoesNotExist
from lakequeue.model.redrive_policies import ACCOUNT


def queue_url(base_url: str, name: str) -> str:
    """The URL of a queue, for clients that reach the server under a base URL (scheme and host)."""
    return f"{base_url}/{ACCOUNT}/{name}"


def queue_name(url: str) -> str:
    """The queue that a URL names: the last part of its path; host and account do not matter.

    Raises:
        QueueDoesNotExist: the URL names no queue.
    """
    try:
        name = unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2], errors="strict")
    except ValueError:
        name = ""
    if not name:
        raise QueueDoesNotExist()
    return name
