"""What is simulated has all that it stands for: a call that is missing would be taken for an error of storage."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakequeue.storage import no_links
from simulation.disk import Disk, System
from simulation.installed import links_of
from simulation.scheduler import World

LOCKS = {"open_lock", "open_lock_in"}
"""Of locks, whose files are simulated one level above: `file_lock.FileIO` opens them."""


@pytest.fixture
def simulated() -> SimpleNamespace:
    return links_of(System(World(cast(Any, None)), Disk()))


def test_the_simulated_disk_has_the_functions_of_no_links_with_their_parameters(
    simulated: SimpleNamespace,
) -> None:
    real = {
        name: each
        for name, each in vars(no_links).items()
        if getattr(each, "__module__", "") == no_links.__name__ and not name.startswith("_")
    }
    assert {"names", "above", "Opener"} < real.keys()

    def parameters(functions: dict[str, Any]) -> dict[str, list[tuple[str, Any, Any]]]:
        return {
            name: [(each.name, each.kind, each.default) for each in inspect.signature(found).parameters.values()]
            for name, found in functions.items()
        }

    assert parameters(vars(simulated)) == parameters({name: real[name] for name in real.keys() - LOCKS})
