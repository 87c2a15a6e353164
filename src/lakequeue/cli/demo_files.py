"""Queue and input of the demo: Python files as messages, and how a consumer handles them."""

from __future__ import annotations

import ast
import base64
import json
import os
import re
import warnings
import zlib
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakequeue.errors import InvalidOptions, QueueClientError, QueueDoesNotExist

if TYPE_CHECKING:
    from lakequeue.client import LakeQueue
    from lakequeue.queue import Queue

QUEUE = "lakequeue-demo"
FLAKY_EVERY = 10
"""Every tenth file fails at its first receive."""
MAX_BODY_BYTES = 1_000_000
"""Maximum bytes of a message body, slightly below the limit of the default profile."""


def fresh_queue(lake: LakeQueue, name: str, **attributes: Any) -> Queue:
    """Creates an empty queue. Replaces an existing queue of this name."""
    # there may be no queue or no root yet; if the root is unusable, create_queue says why
    with suppress(QueueDoesNotExist, QueueClientError):
        lake.delete_queue(name)
    return lake.create_queue(name, **attributes)


def package_directory(name: str) -> Path:
    found = find_spec(name)
    assert found is not None and found.origin is not None
    return Path(found.origin).parent


def python_files(where: Path) -> tuple[list[tuple[str, str]], int]:
    """Returns each file's body and group, and how many were skipped. Raises InvalidOptions if no file is left."""
    if not where.is_dir():
        raise InvalidOptions([f"--input {where}: not a directory"])
    entries: list[tuple[str, str]] = []
    skipped = 0
    for path in sorted(where.rglob("*.py")):
        try:
            source = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            skipped += not path.is_dir()
            continue
        name = path.relative_to(where)
        package = name.parts[0] if len(name.parts) > 1 else "."
        flaky = len(entries) % FLAKY_EVERY == 0
        printable = os.fsencode(name.as_posix()).decode(errors="replace")
        body = json.dumps({"path": printable, "flaky": flaky, "source": source})
        if len(body) > MAX_BODY_BYTES:
            packed = base64.b64encode(zlib.compress(source.encode()))
            body = json.dumps({"path": printable, "flaky": flaky, "zlib": packed.decode()})
        if len(body) > MAX_BODY_BYTES:
            skipped += 1
        else:
            entries.append((body, re.sub(r"[^A-Za-z0-9._-]", "_", package)[:128]))
    if not entries:
        raise InvalidOptions([f"--input {where}: no Python file in it"])
    return entries, skipped


def measure(body: str, receive_count: int) -> dict[str, Any]:
    """Handles a message: measures the Python file in its body. A flaky file fails at its first receive."""
    file = json.loads(body)
    failed = file["flaky"] and receive_count == 1
    return {"path": file["path"], "failed": failed} | ({} if failed else parse(_source(file)))


def _source(file: dict[str, Any]) -> str:
    if "zlib" in file:
        return zlib.decompress(base64.b64decode(file["zlib"])).decode()
    source: str = file["source"]
    return source


def parse(source: str) -> dict[str, Any]:
    """Counts lines, functions and classes of a module. For an invalid module, ``problem`` is not None."""
    found: dict[str, Any] = {"lines": len(source.splitlines()), "functions": 0, "classes": 0, "problem": None}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the files
            nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return found | {"problem": f"{type(error).__name__}: {error}"[:200]}
    found["functions"] = sum(isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) for node in nodes)
    found["classes"] = sum(isinstance(node, ast.ClassDef) for node in nodes)
    return found
