"""Integrations with schedulers and task queues; each imports only the public faces."""

from __future__ import annotations

from lakequeue.errors import OverLimit, QueueClientError, RequestThrottled

MOST_AT_ONCE = 1_000
"""Most messages that a scheduler receives at once."""
PASSING = (QueueClientError, RequestThrottled, OverLimit)
"""Errors that waiting may end."""
