"""How tests run commands, and the terminals that they give them."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
from collections.abc import Callable

from click.testing import Result

Run = Callable[..., Result]
Start = Callable[..., "subprocess.Popen[str]"]

PROGRAM = "import lakequeue_command; lakequeue_command.main()"


class Terminal:
    """A terminal of which a process sees one side, and the test the other."""

    def __init__(self) -> None:
        self._mine, self.its = pty.openpty()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._mine)

    def until(self, text: str) -> str:
        """All that is shown until a text is."""
        shown = b""
        while text.encode() not in shown:
            shown += os.read(self._mine, 10_000)
        return shown.decode()

    def rest(self) -> str:
        """All that is shown until the process ends."""
        os.close(self.its)
        shown = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(self._mine, 10_000):
                shown += part
        return shown.decode(errors="replace")
