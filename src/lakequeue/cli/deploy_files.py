"""The command that writes the files by which others run lakequeue."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from lakequeue.cli import render
from lakequeue.cli.session import Context
from lakequeue.errors import QueueClientError

_PACKAGE = Path(__file__).parents[1]
_PROJECT = _PACKAGE.parents[1]


def deploy_files(
    ctx: Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty directory.")],
) -> None:
    """Write dashboards, alerts, and files for containers, Kubernetes and systemd into a directory."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise QueueClientError(f"{folder} is not empty; nothing was written")
    if (_PACKAGE / "deploy").is_dir():
        _copy(_PACKAGE / "deploy", folder)
    else:  # a checkout; pyproject.toml puts the same into the wheel
        _copy(_PROJECT / "deploy", folder)
        _copy(_PROJECT / "conf" / "grafana", folder / "grafana")
        shutil.copy(_PROJECT / "conf" / "prometheus" / "alerts.yml", folder)
    written = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    ctx.obj.answer({"folder": str(folder), "files": written}, f"{render.count(len(written), 'file')} in {folder}")


def _copy(source: Path, target: Path) -> None:  # pip compiles what it installs
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
