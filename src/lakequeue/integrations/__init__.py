"""Integrations with schedulers and task queues. They import only the public API."""

from __future__ import annotations

from lakequeue.errors import OverLimit, QueueClientError, RequestThrottled

MOST_AT_ONCE = 1_000
"""Maximum number of messages that a scheduler receives at once."""
PASSING = (QueueClientError, RequestThrottled, OverLimit)
"""Errors that may stop occurring while a caller waits."""
