"""Who may only read a store can use the commands that the page on access to the files names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.object_store import Counted, Environ
from typer.testing import CliRunner

from lakequeue import LakeQueue
from lakequeue.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "operation" / "permissions.md"
DENIED = "403 Forbidden", "AccessDenied", "Access Denied"
ARGUMENTS = {"peek": ["orders"], "show": ["orders"], "export": ["orders"], "sql": ["SELECT body FROM messages"]}


def commands() -> list[str]:
    [row] = re.findall(r"^\| those who only read \((.*)\) \| get and list", PAGE.read_text(encoding="utf-8"), re.M)
    return re.findall("`([a-z]+)`", row)


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_page_needs_get_and_list(
    store: Counted, lq: LakeQueue, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    queue = lq.create_queue("orders")
    for body in "ab":
        queue.send(body)
    queue.receive()
    refused, source = list[str](), f"{lq.root.rpartition('/')[2]}/"

    def refuse(environ: Environ) -> tuple[str, str, str] | None:
        read, copied = environ["REQUEST_METHOD"] in ("GET", "HEAD"), command == "copy"
        if read or (copied and source not in environ["PATH_INFO"]):
            return None
        refused.append(environ["REQUEST_METHOD"])
        return DENIED

    monkeypatch.setattr(store, "refusal", refuse)
    words = ["--root", lq.root, command, *ARGUMENTS.get(command, [])]
    done = CliRunner().invoke(app, ["copy", lq.root, f"{lq.root}-copy"] if command == "copy" else words)
    assert done.exit_code == 0 and refused == [], done.output


def test_a_send_needs_more(store: Counted, lq: LakeQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    lq.create_queue("orders")
    monkeypatch.setattr(store, "refusal", lambda environ: DENIED if environ["REQUEST_METHOD"] == "PUT" else None)
    done = CliRunner().invoke(app, ["--root", lq.root, "send", "orders", "x"])
    assert done.exit_code == 3 and "AccessDenied" in done.output
