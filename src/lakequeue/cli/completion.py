"""What a shell completes: names of queues, attributes and profiles. Never prints, never uses a network."""

from __future__ import annotations

import logging

import typer

from lakequeue.model.attributes import fields
from lakequeue.model.profiles import PROFILES


def queues(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of queues of a local root; an object store would take too long."""
    options = ctx.find_root().params
    root = options.get("root")
    if not root:
        return []
    logging.disable()  # a warning would stand in the middle of the user's line
    try:
        from lakequeue import LakeQueue
        from lakequeue.entry_verbs import local_path

        if local_path(str(root)) is None:
            return []
        lake = LakeQueue(str(root), region=options.get("region") or "local")
        return [queue.name for queue in lake.list_queues(incomplete)]
    except Exception:  # the command itself will tell
        return []
    finally:
        logging.disable(logging.NOTSET)


def attributes(incomplete: str) -> list[str]:
    """Names of attributes, for ``NAME=VALUE``."""
    return [f"{name}=" for name in fields() if name.startswith(incomplete)]


def profiles(incomplete: str) -> list[str]:
    return [name for name in PROFILES if name.startswith(incomplete)]
