"""The SQL views over the queues of a root."""

from __future__ import annotations

from datetime import datetime

from lakequeue.model.arguments import check_instant
from lakequeue.operations import sql_views
from lakequeue.runtime.root import Root


def statements(root: Root, now: datetime | None, as_of: datetime | None) -> list[str]:
    """The SQL that makes the views over the queues that exist, or that existed at ``as_of``."""
    then = None if as_of is None else check_instant("as_of", as_of)
    if now is not None:
        check_instant("now", now)
    with root.storage_errors():
        rows = [
            row
            for row in root.rows()
            if row.deleted_at is None or (then is not None and row.created_at <= then < row.deleted_at)
        ]
        return sql_views.view_statements(root.path, rows, now, as_of)
