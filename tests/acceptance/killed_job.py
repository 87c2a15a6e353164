"""Runs a job, and says on its standard output when it has a session: ``python killed_job.py NAME ARGUMENTS``."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

from lakequeue.cli import job

PROJECT = Path(__file__).parents[2]


def main() -> None:
    build = job.build_session

    def built(*args: Any, **kwargs: Any) -> Any:
        session = build(*args, **kwargs)
        print("ready", flush=True)
        return session

    job.build_session = built
    name, *sys.argv[1:] = sys.argv[1:]
    sys.path.append(str(Path(__file__).parent))  # has the handlers
    runpy.run_path(str(PROJECT / "jobs" / f"{name}.py"), run_name="__main__")


if __name__ == "__main__":
    main()
