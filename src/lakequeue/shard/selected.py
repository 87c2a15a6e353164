"""What an operator does with chosen messages, without a receipt: delete them, make them visible, or erase them.

Nobody's receipt ends by this unless the operator says so, or erases the message.
"""

from __future__ import annotations

from lakequeue.shard.commands import Discard, Erase, MakeVisible
from lakequeue.shard.runs import MOVING, VISIBLE
from lakequeue.shard.state import ShardState


def discard(state: ShardState, command: Discard) -> tuple[int, bool]:
    """Deletes the visible messages of the spans; those in flight, delayed, held or moving stay."""
    if state.attributes.fifo:
        assert state.groups is not None  # built while the messages are still there
    state.scan_to(1 + max((last for _, last in command.spans), default=-1))
    found = [part for span in sorted(command.spans) for part in state.withdraw(*span)]
    for run in state.take(found):
        state.remove(run)
    state.serve_groups()
    return sum(last - first + 1 for first, last in found), bool(found)


def erase(state: ShardState, command: Erase) -> tuple[bool, bool]:
    """Deletes the messages of the spans in any state, and from the history; those that are moving stay."""
    if state.attributes.fifo:
        assert state.groups is not None  # built while the messages are still there
    state.scan_to(1 + max((last for _, last in command.spans), default=-1))
    moving = changed = False
    for first, last in sorted(command.spans):
        last = min(last, state.log.end - 1)
        for run in list(state.known(first, last)):
            if run.state == MOVING:
                moving = True
                continue
            held = run.last >= state.scanned  # the head passes those before it, which releases them (INF-9)
            state.delayed.discard(run.first, run.last)
            for part in state.take([(run.first, run.last)]):
                state.remove(part)
            if held:
                state.change_cap()
            changed = True
        if any(state.history.pieces(first, last)):
            state.history.cut(first, last)
            changed = True
    state.serve_groups()
    return moving, changed


def make_visible(state: ShardState, command: MakeVisible) -> tuple[int, bool]:
    """Ends the delay of the messages of the spans; and the receipts of those in flight, if the command says so.

    A message that is held, moving, or visible already stays as it is. Who held a message in flight may still
    delete it until somebody receives it again, except on strict queues (RCP-7, RCP-8).
    """
    state.scan_to(1 + max((last for _, last in command.spans), default=-1))
    done = 0
    for first, last in sorted(command.spans):
        for run in list(state.known(first, min(last, state.scanned - 1))):
            if state.live(run):
                if command.in_flight:
                    state.hand_back(run)
                    done += run.size
            elif run.state != MOVING and run.visible_at is None:
                for start, end, instant in list(state.spans(run.first, run.last)):
                    if instant > state.now:
                        state.delayed.discard(start, end)
                        delayed = state.take([(start, end)])
                        state.set_runs([each._replace(state=VISIBLE, visible_at=state.now) for each in delayed])
                        done += end - start + 1
    return done, done > 0
