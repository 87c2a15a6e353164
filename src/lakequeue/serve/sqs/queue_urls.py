"""URLs and ARNs of queues, as SQS clients see them."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from lakequeue.errors import QueueDoesNotExist
from lakequeue.model import redrive_policies


def queue_url(base_url: str, account: str, name: str) -> str:
    """The URL of a queue, for clients that reach the server under a base URL (scheme and host)."""
    return f"{base_url}/{account}/{name}"


def queue_arn(arn: str, account: str) -> str:
    """The ARN of a queue in AWS's form, given any form; texts that are no ARN of a queue stay as they are."""
    place = redrive_policies.place(arn)
    return arn if place is None else f"arn:aws:sqs:{place.region}:{account}:{place.name}"


def is_own(arn: str, account: str) -> bool:
    """Whether a text is no ARN of another account; that of the Python API's ARNs is everybody's."""
    return redrive_policies.place(arn) is None or arn.split(":")[4] in (account, redrive_policies.ACCOUNT)


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
