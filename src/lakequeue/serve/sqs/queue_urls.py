"""URLs and ARNs of queues, as SQS clients see them."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from lakequeue.errors import QueueDoesNotExist
from lakequeue.model import redrive_policies


def queue_url(base_url: str, account: str, name: str) -> str:
    return f"{base_url}/{account}/{name}"


def queue_arn(arn: str, account: str) -> str:
    """Converts the ARN of a queue to the form that AWS uses. Returns any other text unchanged."""
    place = redrive_policies.parse_arn(arn)
    return arn if place is None else f"arn:aws:sqs:{place.region}:{account}:{place.name}"


def is_own(arn: str, account: str) -> bool:
    """Returns False if an ARN names another account. True for the Python API's ARNs, which name no account."""
    return redrive_policies.parse_arn(arn) is None or arn.split(":")[4] in (account, redrive_policies.ACCOUNT)


def queue_name(url: str) -> str:
    """Returns the queue's name, the last part of the URL's path. Raises QueueDoesNotExist if it is empty."""
    try:
        name = unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2], errors="strict")
    except ValueError:
        name = ""
    if not name:
        raise QueueDoesNotExist()
    return name
