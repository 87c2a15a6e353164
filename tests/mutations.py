"""One runner for mutations: a scenario passes as the code is, and fails once a safeguard is taken out of it.

A test module has a table of mutations. Each row has a name, the patch that takes a safeguard out, and the
scenarios that must then fail, each with the guarantee that it shows. Without this, a safeguard that no test
misses could get lost unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import pytest

Patch = pytest.MonkeyPatch
Scenario = Callable[..., None]


@attrs.frozen
class Mutation:
    """A safeguard taken out, and the scenarios that miss it."""

    name: str
    apply: Callable[[Patch], Any]
    scenarios: Mapping[Scenario, str]
    """Guarantee that a scenario shows: rule ids, or a number of the design's list of guarantees."""


@attrs.frozen
class Case:
    """A scenario, and the mutation under which it must fail; without one it must pass."""

    scenario: Scenario
    mutation: Mutation | None = None

    def run(
        self,
        prepare: Callable[[Patch], tuple[Any, ...]] = lambda _: (),
        failures: tuple[type[BaseException], ...] = (),
    ) -> None:
        """Runs the scenario with the arguments that `prepare` makes; it fails by an assertion or by `failures`."""
        with pytest.MonkeyPatch.context() as patch:
            if self.mutation is None:
                self.scenario(*prepare(patch))
                return
            self.mutation.apply(patch)
            arguments = prepare(patch)
            with pytest.raises((AssertionError, *failures)):
                self.scenario(*arguments)


def replace(*targets: Any) -> Callable[[Patch], None]:
    """A mutation that sets one attribute: arguments as those of `MonkeyPatch.setattr`."""
    return lambda patch: patch.setattr(*targets)


def shown_by(test: Callable[..., None], arguments: Callable[..., tuple[Any, ...]]) -> Scenario:
    """A test as a scenario, with arguments that it has itself, made from those of a scenario."""

    def scenario(*given: Any) -> None:
        test(*arguments(*given))

    scenario.__name__ = test.__name__.removeprefix("test_")
    scenario.is_test = True  # type: ignore[attr-defined]
    return scenario


def each_case(mutations: Iterable[Mutation]) -> pytest.MarkDecorator:
    """Parametrizes a test by ``case``: each scenario under each of its mutations, and as the code is.

    Not the latter where the scenario is a test, which shows that.
    """
    rows = [(mutation, *row) for mutation in mutations for row in mutation.scenarios.items()]
    params = [
        pytest.param(
            Case(scenario, mutation),
            id=f"{scenario.__name__}-{mutation.name}",
            marks=pytest.mark.spec(*re.findall(r"[A-Z]{3}-\d+", guarantee)),
        )
        for mutation, scenario, guarantee in rows
    ]
    scenarios = dict.fromkeys(scenario for _, scenario, _ in rows if not hasattr(scenario, "is_test"))
    params += [pytest.param(Case(scenario), id=scenario.__name__) for scenario in scenarios]
    return pytest.mark.parametrize("case", params)
