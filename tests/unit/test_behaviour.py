"""docs/reference/rules.md, the sources and the tests speak of the same rules."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parents[2]
PAGE = (HERE / "docs" / "reference" / "rules.md").read_text(encoding="utf-8")
ID = re.compile(
    r"\b(?:PRF|NAM|QUE|STA|RCP|SND|BAT|RCV|VIS|DEL|INF|RET|DLY|LPL|FIF|DDP|SEQ|ATT|RWD|HBN|HNS|DLQ|PUR|JOB|MSA"
    r"|ERR|QTA|PER|EXM|DLT|DUR|FAI|TAB|RLY)-\d+\b"
)
TOLD_ONLY = {
    "QUE-32": "reference/profiles: limits are those of one queue",
    "DEL-8": "tutorial: the newest handle always deletes",
    "QTA-10": "reference/profiles: stored messages are not limited",
    "DLY-6": "index: no topics, so no delays on them",
    "DLQ-11": "guides/dead-letters: do without dead letters where no message may be skipped",
    "FIF-2": "guides/fifo: between groups there is no order",
    "FIF-17": "guides/fifo: clients that buffer",
    "HBN-13": "guides/consumers: pushed messages",
    "HBN-14": "guides/consumers: pushed messages",
}
"""Facts that no test can show, stated in a sentence."""


def explained_ids() -> list[str]:
    """Ids that the page explains, in order."""
    return re.findall(r"^- \*\*([A-Z]{3}-\d+)\*\* \S", PAGE, re.MULTILINE)


def named(folder: str) -> dict[str, str]:
    """Ids that the Python files and transcripts of a folder name, with a file that does."""
    found: dict[str, str] = {}
    for path in sorted((HERE / folder).rglob("*.*")):
        if path == Path(__file__).resolve() or path.suffix not in (".py", ".txt"):
            continue
        where = str(path.relative_to(HERE))
        found.update((id, where) for id in ID.findall(path.read_text(encoding="utf-8")))
    return found


def test_each_rule_is_stated_once() -> None:
    ids = explained_ids()
    assert sorted(ids) == sorted(set(ids))


def test_every_id_in_sources_and_tests_is_documented() -> None:
    explained = {*explained_ids()}
    unknown = {id: where for id, where in (named("src") | named("tests")).items() if id not in explained}
    assert not unknown


def test_every_documented_rule_has_a_test() -> None:
    shown = named("tests").keys() | TOLD_ONLY.keys()
    missing = [id for id in explained_ids() if id not in shown]
    assert not missing
