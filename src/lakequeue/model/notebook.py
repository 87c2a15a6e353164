"""Small HTML tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from itertools import islice

ROWS = 20
"""Maximum number of rows of a table."""
TEXT = 100
"""Maximum number of characters of a cell."""


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Formats a table as HTML. Ends with "and more" after ``ROWS`` rows."""
    shown = [*islice(rows, ROWS + 1)]
    lines = ["".join(f"<td>{escape(_text(value))}</td>" for value in row) for row in shown[:ROWS]]
    if len(shown) > ROWS:
        lines.append(f'<td colspan="{len(columns)}">and more</td>')
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    caption = escape(_text(caption))
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: object) -> str:
    text = f"{value:%Y-%m-%d %H:%M:%S}Z" if isinstance(value, datetime) else "" if value is None else str(value)
    return text if len(text) <= TEXT else text[: TEXT - 1] + "…"
