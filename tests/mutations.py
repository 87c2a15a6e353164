"""One runner for mutations: a scenario passes as the code is, and fails once a safeguard is taken out of it.

A test module has a table of mutations, `MUTATIONS`. Each row has a name, the patch that takes a safeguard out, and
the scenarios that must then fail, each with the guarantee that it shows. Without this, a safeguard that no test
misses could get lost unnoticed. ``python -m mutations`` in tests/ prints all of them.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from lakequeue.errors import TableUnavailable
from lakequeue.operations import delivery_protocol as protocol
from lakequeue.operations.delivery_protocol import DeliveryStatus, OpenedDeliveryTable
from lakequeue.runtime.shard_ledger import ShardLedger
from lakequeue.shard import deliver
from lakequeue.shard.claim import standard
from lakequeue.shard.commands import Claim
from lakequeue.shard.state import ShardState
from lakequeue.storage import parquet_files
from lakequeue.storage.clock_guard import ClockGuard
from lakequeue.storage.delivery.identity import CommitRefused, DeliveryIdentity

Patch = pytest.MonkeyPatch
Scenario = Callable[..., None]


@attrs.frozen
class Mutation:
    """A safeguard taken out, and the scenarios that miss it."""

    name: str
    apply: Callable[[Patch], Any]
    scenarios: Mapping[Any, str]
    """Guarantee that a scenario shows: rule ids, or numbers of the design's list of guarantees.

    A simulation's is not a function, but what its runs have in common (`simulation.runs.Aim`).
    """

    def specs(self) -> list[pytest.MarkDecorator]:
        """The marks of a test that runs all scenarios."""
        return [_spec(guarantee) for guarantee in self.scenarios.values()]


def _spec(guarantee: str) -> pytest.MarkDecorator:
    return pytest.mark.spec(*re.findall(r"[A-Z]{3}-\d+", guarantee))


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
            marks=_spec(guarantee),
        )
        for mutation, scenario, guarantee in rows
    ]
    scenarios = dict.fromkeys(scenario for _, scenario, _ in rows if not hasattr(scenario, "is_test"))
    params += [pytest.param(Case(scenario), id=scenario.__name__) for scenario in scenarios]
    return pytest.mark.parametrize("case", params)


# --- mutations that several suites apply

believe_every_clock = replace(ClockGuard, "check", lambda *_: None)
accept_any_lease = replace("lakequeue.shard.settle.holds", lambda *_: True)
answer_from_what_is_known = replace(
    ShardLedger, "query", lambda self, query, *_: query(self._machine or self._fresh_machine())
)
"""A process asks its ledger without a look at what others committed."""


def receive_in_a_pause(patch: Patch) -> None:
    allowed = standard._allowed

    def unpaused(state: ShardState, command: Claim) -> int:
        with_pause, state.attributes = state.attributes, attrs.evolve(state.attributes, paused=None)
        try:
            return allowed(state, command)
        finally:
            state.attributes = with_pause

    patch.setattr(standard, "_allowed", unpaused)


def verify_no_checksums(patch: Patch) -> None:
    parquet = parquet_files.pq  # a simulation has its own

    def trusting(source: Any, **options: Any) -> Any:
        return parquet.ParquetFile(source, **options | {"page_checksum_verification": False})

    patch.setattr(parquet_files, "pq", SimpleNamespace(**vars(parquet) | {"ParquetFile": trusting}))


def trust_the_answer(opened: OpenedDeliveryTable, snapshot: Any, marked: Any, rows: Any, **_: Any) -> Any:
    """Appends, and takes the acknowledgement for an arrival."""
    if protocol.state_of(snapshot, marked.delivery) is not DeliveryStatus.OPEN:
        raise TableUnavailable("", "", outcome_unknown=True)
    try:
        snapshot.append(marked.delivery, rows, False)
    except CommitRefused:
        raise TableUnavailable("", "", outcome_unknown=True) from None
    opened.table.sync(snapshot.version + 1)
    return snapshot


def append_once(opened: OpenedDeliveryTable, snapshot: Any, marked: Any, rows: Any, **_: Any) -> Any:
    """Appends, and takes a refusal for an arrival."""
    with suppress(CommitRefused):
        snapshot.append(marked.delivery, rows, False)
    return marked.delete()


def refused_is_arrived(opened: OpenedDeliveryTable, delivery: DeliveryIdentity) -> Any:
    """Blocks, and takes a refusal for an arrival."""
    snapshot = opened.read()
    state = protocol.state_of(snapshot, delivery)
    if state is DeliveryStatus.OPEN:
        try:
            snapshot.block(delivery)
        except CommitRefused:
            return DeliveryStatus.ARRIVED, snapshot
        return DeliveryStatus.BLOCKED, snapshot
    return state, snapshot


def delete_first(opened: OpenedDeliveryTable, snapshot: Any, marked: Any, rows: Any, **_: Any) -> Any:
    """Deletes the messages, then appends their rows."""
    counts = marked.delete()
    protocol.append(opened, snapshot, marked, rows)
    return counts


a_block_looks_like_an_append = replace(DeliveryIdentity, "block", property(lambda delivery: delivery.version))
an_acknowledged_append_counts_unseen = replace(protocol, "append", trust_the_answer)
a_refused_append_is_an_arrival = replace(protocol, "deliver", append_once)
a_refused_block_is_an_arrival = replace(protocol, "close", refused_is_arrived)
a_repair_blocks_nothing = replace(protocol, "block_all", lambda *_: None)
messages_are_deleted_first = replace(protocol, "deliver", delete_first)


def slots_are_used_again_with_their_number(patch: Patch) -> None:
    """A block of an earlier delivery of the slot counts for a later one."""
    new_marks = deliver.new_marks
    patch.setattr(
        deliver, "new_marks", lambda *given: [mark._replace(number=1 << 20) for mark in new_marks(*given)]
    )


def what_is_undecided_is_visible(patch: Patch) -> None:
    """A message may be claimed again before the table has shown if its rows arrived."""
    advance = ShardState.advance

    def shown(self: ShardState, now: int) -> None:
        advance(self, now)
        for first, last in list(self.undecided):
            self.available.add(first, last)

    patch.setattr(ShardState, "advance", shown)


# --- all mutations


def all_mutations() -> dict[str, list[Mutation]]:
    """Those of all suites, by the module that has them."""
    tests = Path(__file__).parent
    files = [path for path in tests.rglob("*.py") if re.search(r"^MUTATIONS\b", path.read_text(), re.MULTILINE)]
    names = sorted(".".join(path.relative_to(tests).with_suffix("").parts) for path in files)
    return {name: importlib.import_module(name).MUTATIONS for name in names}


if __name__ == "__main__":
    for module, mutations in all_mutations().items():
        for mutation in mutations:
            for scenario, guarantee in mutation.scenarios.items():
                print(module, mutation.name, getattr(scenario, "__name__", scenario), guarantee, sep=" | ")
