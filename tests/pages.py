"""The code blocks of a page, and whether what they print and log is what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parents[1]
TEST_LINE = "python3 -m venv .venv && .venv/bin/pip install -q '.[test]' && .venv/bin/pytest"
DEMO_LINE = "python3 -m venv .venv && .venv/bin/pip install -q '.[spark]' && .venv/bin/lakequeue demo"


class Block(NamedTuple):
    language: str
    source: str
    output: str | None
    """What the page says that it prints."""

    @property
    def needs_spark(self) -> bool:
        return self.language == "python" and "spark" in self.source

    @property
    def scheduler(self) -> str | None:
        """The scheduler that it needs, which has an environment of its own: ``airflow`` or ``dagster``."""
        found = re.search(r"^(?:from|import) (airflow|dagster)\b", self.source, re.MULTILINE)
        return found and found[1]


def blocks(page: str) -> list[Block]:
    """Blocks of Python and shell to execute, with what they print, and blocks of what they log, in order."""
    text = (HERE / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w+)\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", text, re.DOTALL | re.MULTILINE)
    return [
        Block(language, source, output or None)
        for language, source, output in found
        if language in ("python", "shell", "log") and source.strip() not in (TEST_LINE, DEMO_LINE)
    ]


def agrees(printed: str, told: str) -> bool:
    """Whether a text is what the page says, spaces at the ends of lines and of the text aside."""
    printed, told = ("\n".join(line.rstrip() for line in text.strip().splitlines()) for text in (printed, told))
    return re.fullmatch(".*".join(map(re.escape, told.split("…"))), printed, re.DOTALL) is not None
