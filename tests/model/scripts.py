"""Examples as scripts, each run by the state machine and the naive model at once.

An example begins with what it shows, the ids of its rules, and settings of its queue (`Settings`, with times in
seconds). A line begins with seconds after the start and has the steps of that instant. A step may have an answer,
for a refusal its code and a part of the text; without one it must only not be refused. On FIFO queues a message is
called by its group and its place in it (A1, A2, B1), on standard queues by its offset.

    send AAB              one message for each letter; on standard queues a number, or delays: send delayed 45 0
    receive 2 for 30      up to 10 unless stated otherwise, with a visibility timeout, or with an attempt id: try x
    receive hands 2       as a consumer that has two free handlers
    delete A1, change A1 60, with "by 2" the receipt of the second receive instead of the latest of the message
    finish 1 0-9 but 2 4, extend 1 0-9 60, release 1 0-9    the lease of the first receive, from offset to offset
    purge, expire, close, rewind SECOND, set delay=5, show 0-1
    counts -> 1 0 2    visible, in flight, delayed, and held if the queue limits delayed messages
    received, first    receive counts, and seconds of first receipts, of messages that are not gone
    stored, rewindable, purged, next    numbers of messages; the second at which something may change
    rows -> 0-2 3-3    the runs that the ledger holds
    move 0-0, outgoing, move_back 1    begins a redrive, shows the messages of a move, gives move 1 up
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

from lakequeue.shard.commands import (
    ChangeVisibility,
    ClaimResult,
    Close,
    Delete,
    Expire,
    LeaseCounts,
    LeaseDelete,
    LeaseExtend,
    LeaseRelease,
    MakeVisible,
    Move,
    MoveBack,
    Purge,
    Result,
    Rewind,
    SetAttributes,
)
from lakequeue.shard.runs import Destination

from .command_sequences import ELSEWHERE, Comparison, wire
from .model import DEAD_LETTER_QUEUE, SECOND, Settings

TIMES = {"delay", "visibility_timeout", "retention", "rewind_range"}
"""Settings that a script gives in seconds."""


@attrs.frozen
class Example:
    """A script and what it shows."""

    title: str
    ids: list[str]
    settings: dict[str, str]
    lines: list[tuple[float, list[str]]]


def read(text: str) -> list[Example]:
    """The examples of a text, which empty lines separate."""
    found = []
    for block in text.strip().split("\n\n"):
        head, *lines = block.split("\n")
        title, ids, settings = re.fullmatch(r"(.*) \[(.*)\](.*)", head).groups()  # type: ignore[union-attr]
        steps = [(float(at), rest.split("; ")) for at, rest in (line.split(maxsplit=1) for line in lines)]
        found.append(Example(title, ids.split(), _pairs(settings), steps))
    return found


def each_example(text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs a test with each example of a text; also with a machine that is built anew from the rows each time."""
    examples = [pytest.param(each, id=each.title, marks=pytest.mark.spec(*each.ids)) for each in read(text)]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        return pytest.mark.parametrize("ending", ["commit", "rebuild"])(
            pytest.mark.parametrize("example", examples)(test)
        )

    return decorate


class Shard:
    """One shard; `ending` says what happens after each command (see `Comparison.flush`)."""

    def __init__(self, ending: str = "commit", fifo: bool = False, **settings: Any) -> None:
        self.fifo, self.ending = fifo, ending
        given = {"fifo": fifo, "strict": fifo, "retention": 345_600} | settings
        self.comparison = Comparison(Settings(**_in_micros(given)), print)
        self.start = self.comparison.clock
        self.names: list[str] = []
        self.leases: dict[str, str] = {}

    @classmethod
    def of(cls, example: Example, ending: str, **kind: Any) -> Shard:
        """A shard with the settings of an example, after its steps."""
        shard = cls(ending, **kind, **{name: _number(value) for name, value in example.settings.items()})
        for at, steps in example.lines:
            shard.at(at, *steps)
        return shard

    @property
    def machine(self) -> Any:
        return self.comparison.machine

    def at(self, seconds: float, *steps: str) -> None:
        """Takes steps at an instant, and compares their answers with the expected ones."""
        self.comparison.clock = self.instant(seconds)
        for step in steps:
            call, arrow, expected = step.partition("->")
            answer = self.do(*call.split())
            if arrow:
                code, _, reason = expected.strip().partition(" (")
                told, _, text = answer.partition(" (")
                assert (told, reason.rstrip(")") in text) == (code, True), f"{seconds}: {step}: {answer}"
            else:
                assert " (" not in answer, f"{seconds}: {step}: {answer}"

    def instant(self, seconds: float) -> int:
        return self.start + round(seconds * SECOND)

    def do(self, verb: str, *words: str) -> str:
        answer: str = getattr(self, f"_{verb}")(*words)
        return answer or "nothing"

    # steps

    def _send(self, what: str = "1", *delays: str) -> str:
        if self.fifo:
            for group in what:
                self.names.append(f"{group}{sum(name[0] == group for name in self.names) + 1}")
                self.comparison.append(0, group)
            return "done"
        for delay in delays or ["0"] * int(what):
            self.names.append(str(len(self.names)))
            self.comparison.append(_micros(delay))
        return "done"

    def _receive(self, *words: str) -> str:
        count = words[0] if len(words) % 2 else "10"
        more = dict(zip(words[len(words) % 2 :: 2], words[len(words) % 2 + 1 :: 2], strict=True))
        keys: dict[str, Destination | None] = {DEAD_LETTER_QUEUE: None if "key" in more else ELSEWHERE}
        hands = int(more["hands"]) if "hands" in more else None
        timeout = _micros(more["for"]) if "for" in more else None
        self.comparison.ask(int(count), timeout, more.get("try"), keys, hands)
        result = self._flush()
        if not isinstance(result.value, ClaimResult):
            return _answer(result)
        claim = result.value
        if claim.moving:
            return "moving"
        spans = claim.order if self.fifo else [(span.first, span.last) for span in claim.spans]
        order = [self.names[offset] for first, last in spans for offset in range(first, last + 1)]
        self.leases |= dict.fromkeys(order, claim.lease_id)
        return " ".join(order)

    def _delete(self, name: str, *by: str) -> str:
        receipt = self._receipt(name, *by)
        return self._run(Delete(*receipt, "H"), "delete", *receipt)

    def _change(self, name: str, seconds: str, *by: str) -> str:
        receipt, timeout = self._receipt(name, *by), _micros(seconds)
        return self._run(ChangeVisibility(*receipt, timeout, "H"), "change", *receipt, timeout)

    def _receipt(self, name: str, by: str = "", number: str = "") -> tuple[int, str]:
        return self.names.index(name), f"lease-{number}" if by else self.leases[name]

    def _finish(self, number: str, span: str, *but: str) -> str:
        given = f"lease-{number}", [_span(span)], [int(offset) for offset in but[1:]]
        return self._run(LeaseDelete(*given), "lease_delete", *given)

    def _extend(self, number: str, span: str, seconds: str) -> str:
        given = f"lease-{number}", [_span(span)], _micros(seconds)
        return self._run(LeaseExtend(*given), "lease_extend", *given)

    def _release(self, number: str, span: str) -> str:
        given = f"lease-{number}", [_span(span)]
        return self._run(LeaseRelease(*given), "lease_release", *given)

    def _show(self, span: str) -> str:
        return self._run(MakeVisible([_span(span)]), "make_visible", [_span(span)], False)

    def _move(self, span: str) -> str:
        return self._run(Move([_span(span)], ELSEWHERE), "move", [_span(span)])

    def _move_back(self, number: str) -> str:
        return self._run(MoveBack(int(number)), "move_back", int(number))

    def _outgoing(self) -> str:
        return " ".join(
            f"{run.first}-{run.last} received {0 if part.redrive else run.receive_count}"
            for run, part in self.machine.outgoing()
        )

    def _purge(self) -> str:
        return self._run(Purge("orders"), "purge")

    def _expire(self) -> str:
        return self._run(Expire(), "tell_expired")

    def _close(self) -> str:
        return self._run(Close(), "close")

    def _rewind(self, seconds: str) -> str:
        to = self.instant(float(seconds))
        return self._run(Rewind(to), "rewind", to)

    def _set(self, *words: str) -> str:
        old = self.comparison.model.settings
        changes = _in_micros({name: _number(value) for name, value in _pairs(" ".join(words)).items()})
        new = Settings(**(vars(old) | {"version": old.version + 1} | changes))
        return self._run(SetAttributes(wire(new), new.version), "set_attributes", new)

    def _counts(self) -> str:
        self.comparison.flush(self.ending)
        counts = self.machine.counts(self.comparison.clock)
        shown = [counts.visible, counts.in_flight, counts.delayed]
        return " ".join(map(str, [*shown, *([counts.held] if self.comparison.model.settings.delayed_cap else [])]))

    def _received(self) -> str:
        """How often each message was received, the gone ones left out."""
        return " ".join(str(run.receive_count) for run in self.machine.runs for _ in range(run.size))

    def _first(self) -> str:
        """Seconds after the start at which each message was first received, the gone ones left out."""
        runs = self.machine.runs
        return " ".join(
            f"{(run.first_received_at - self.start) / SECOND:g}" for run in runs for _ in range(run.size)
        )

    def _rows(self) -> str:
        return " ".join(f"{run.first}-{run.last}" for run in self.machine.runs)

    def _purged(self) -> str:
        return str(self.machine.head.purged_offset)

    def _rewindable(self) -> str:
        self.comparison.flush(self.ending)
        return str(self.machine.counts(self.comparison.clock).rewindable)

    def _stored(self) -> str:
        self.comparison.flush(self.ending)
        return str(self.machine.stored(self.comparison.clock))

    def _next(self) -> str:
        """Seconds after the start at which something may change."""
        self.comparison.flush(self.ending)
        event = self.machine.next_event(self.comparison.clock)
        return "" if event is None else f"{(event - self.start) / SECOND:g}"

    def _run(self, command: Any, name: str, *arguments: Any) -> str:
        self.comparison.add(command, name, *arguments)
        return _answer(self._flush())

    def _flush(self) -> Result:
        [result] = self.comparison.flush(self.ending)
        return result


def _answer(result: Result) -> str:
    if result.error is not None:
        return f"{result.error.code} ({result.error.message})"
    if isinstance(result.value, LeaseCounts):
        told = attrs.asdict(result.value)
        return " ".join(f"{number} {name}" for name, number in told.items() if number or name == "done")
    return str(result.value) if type(result.value) is int else "done" if result.value in (None, True) else ""


def _micros(seconds: str) -> int:
    return round(float(seconds) * SECOND)


def _span(text: str) -> tuple[int, int]:
    first, last = text.split("-")
    return int(first), int(last)


def _pairs(text: str) -> dict[str, str]:
    return dict(word.split("=") for word in text.split())


def _number(value: str) -> float | None:
    return None if value == "none" else float(value) if "." in value else int(value)


def _in_micros(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: round(value * SECOND) if name in TIMES else value for name, value in settings.items()}
