"""Integrations with schedulers and task queues, over the public API."""

from __future__ import annotations

from lakequeue.errors import OverLimit, QueueClientError, RequestThrottled

MOST_AT_ONCE = 1_000
"""Maximum number of messages that a scheduler receives in one call."""
PASSING = (QueueClientError, RequestThrottled, OverLimit)
"""Errors that may disappear if the caller waits and tries again."""
