"""The examples of FIFO queues in the requirements, each told to the state machine and the naive model at once.

A message is called by its group and its place in it: A1, A2, B1. Times are seconds after the start.
"""

from __future__ import annotations

from typing import Any

import pytest

from lakequeue.shard.commands import ChangeVisibility, ClaimResult, Delete, Purge, Rewind, SetAttributes

from .command_sequences import Comparison, wire
from .model import SECOND, Settings


class Shard:
    """One shard of a FIFO queue; `ending` says what happens after each command (see `Comparison.flush`)."""

    def __init__(
        self, ending: str, retention: int = 600, delay: int = 0, rewind: int = 0, **settings: Any
    ) -> None:
        times = {"retention": retention * SECOND, "delay": delay * SECOND, "rewind_range": rewind * SECOND}
        self.settings = Settings(fifo=True, strict=True, **times, **settings)
        self.comparison = Comparison(self.settings, print)
        self.start = self.comparison.clock
        self.ending = ending
        self.names: list[str] = []
        self.leases: dict[str, str] = {}

    def at(self, seconds: float) -> None:
        self.comparison.clock = self.start + int(seconds * SECOND)

    def send(self, groups: str) -> None:
        """One message for each letter."""
        for group in groups:
            self.names.append(f"{group}{sum(name[0] == group for name in self.names) + 1}")
            self.comparison.append(0, group)

    def receive(self, count: int = 10, vt: int | None = None, attempt: str | None = None) -> str:
        """Names of the messages in the order of delivery."""
        self.comparison.ask(count, None if vt is None else vt * SECOND, attempt)
        [result] = self.comparison.flush(self.ending)
        assert isinstance(result.value, ClaimResult), result.error
        order = [self.names[offset] for first, last in result.value.order for offset in range(first, last + 1)]
        self.leases |= dict.fromkeys(order, result.value.lease_id)
        return " ".join(order)

    def counts(self) -> list[int]:
        """How often each message was received, the gone ones left out."""
        return [run.receive_count for run in self.comparison.machine.runs for _ in range(run.size)]

    def delete(self, name: str, lease: str | None = None) -> str | None:
        """The code of the error, if one was raised."""
        offset, lease = self.names.index(name), lease or self.leases[name]
        return self.run(Delete(offset, lease), "delete", offset, lease)

    def change(self, name: str, seconds: int, lease: str | None = None) -> str | None:
        offset, lease, timeout = self.names.index(name), lease or self.leases[name], seconds * SECOND
        return self.run(ChangeVisibility(offset, lease, timeout), "change", offset, lease, timeout)

    def purge(self) -> str | None:
        return self.run(Purge("orders.fifo"), "purge")

    def rewind(self, seconds: float) -> Any:
        """To so many seconds after the start: how many messages came back, or the code of the error."""
        to = self.start + int(seconds * SECOND)
        self.comparison.add(Rewind(to), "rewind", to)
        [result] = self.comparison.flush(self.ending)
        return result.value if result.error is None else result.error.code

    def set_delay(self, seconds: int) -> str | None:
        old = self.comparison.model.settings
        new = Settings(**(vars(old) | {"delay": seconds * SECOND, "version": old.version + 1}))
        return self.run(SetAttributes(wire(new), new.version), "set_attributes", new)

    def run(self, command: Any, name: str, *arguments: Any) -> str | None:
        self.comparison.add(command, name, *arguments)
        [result] = self.comparison.flush(self.ending)
        return None if result.error is None else result.error.code


@pytest.fixture(params=["commit", "rebuild"])
def ending(request: pytest.FixtureRequest) -> str:
    """Each example also holds when the machine is built anew from the rows after every command."""
    return str(request.param)


@pytest.fixture
def shard(ending: str) -> Shard:
    return Shard(ending)


@pytest.mark.spec("FIF-1", "FIF-3", "FIF-4", "FIF-11", "DEL-5")
def test_a_received_message_blocks_its_group_until_it_is_deleted(shard: Shard) -> None:
    shard.send("AA")
    assert shard.receive(1) == "A1"
    assert shard.receive() == ""
    shard.delete("A1")
    assert shard.receive() == "A2"


@pytest.mark.spec("FIF-4", "ATT-10")
def test_a_received_message_comes_first_again_when_it_becomes_visible(shard: Shard) -> None:
    shard.send("AA")
    assert shard.receive(1, vt=30) == "A1"
    shard.at(29.999)
    assert shard.receive(1) == ""
    shard.at(30)
    assert shard.receive(1) == "A1"


@pytest.mark.spec("FIF-5")
def test_a_receive_takes_all_of_one_group_first(shard: Shard) -> None:
    shard.send("ABAA")
    assert shard.receive() == "A1 A2 A3 B1"


@pytest.mark.spec("FIF-6")
def test_other_groups_fill_the_batch(shard: Shard) -> None:
    shard.send("BABBABBBABBB")
    assert shard.receive(7) == "B1 B2 B3 B4 B5 B6 B7"
    assert shard.receive(10) == "A1 A2 A3"
    shard.send("CCCDDDDDDDDD")
    assert shard.receive(10) == "C1 C2 C3 D1 D2 D3 D4 D5 D6 D7"


@pytest.mark.spec("FIF-7", "FIF-12")
def test_another_consumer_gets_other_groups(shard: Shard) -> None:
    shard.send("AAABB")
    assert shard.receive(2) == "A1 A2"
    assert shard.receive(10) == "B1 B2"


@pytest.mark.spec("FIF-8")
def test_a_group_is_free_when_the_last_one_in_flight_is_deleted(shard: Shard) -> None:
    shard.send("AAA")
    assert shard.receive(2) == "A1 A2"
    shard.delete("A1")
    assert shard.receive() == ""
    shard.delete("A2")
    assert shard.receive() == "A3"


@pytest.mark.spec("FIF-8")
def test_deleting_out_of_order_keeps_the_group_blocked(shard: Shard) -> None:
    shard.send("AAA")
    assert shard.receive(2) == "A1 A2"
    shard.delete("A2")
    assert shard.receive() == ""
    shard.delete("A1")
    assert shard.receive() == "A3"


@pytest.mark.spec("FIF-9")
def test_a_later_one_in_flight_does_not_block_an_earlier_one(shard: Shard) -> None:
    shard.send("AAA")
    assert shard.receive(2) == "A1 A2"
    shard.change("A1", 0)
    assert shard.receive(3) == "A1"


@pytest.mark.spec("FIF-10")
def test_extending_one_blocks_it_and_those_after_it(shard: Shard) -> None:
    shard.send("AAA")
    assert shard.receive(vt=1) == "A1 A2 A3"
    shard.change("A2", 4)
    shard.at(2.5)
    assert shard.receive(5) == "A1"


@pytest.mark.spec("FIF-14")
def test_a_group_made_visible_goes_behind_waiting_ones(shard: Shard) -> None:
    shard.send("AB")
    shard.at(1)
    assert shard.receive(1) == "A1"
    shard.change("A1", 0)
    assert shard.receive(3) == "B1 A1"


@pytest.mark.spec("FIF-14")
def test_no_group_starves_under_constant_load(shard: Shard) -> None:
    shard.send("AABBCC")
    served = []
    for second in range(1, 7):
        shard.at(second)
        name = shard.receive(1)
        served.append(name)
        shard.send("AAA")
        shard.delete(name)
    assert served == ["A1", "B1", "C1", "A2", "B2", "C2"]


@pytest.mark.spec("FIF-14")
def test_a_group_that_was_just_served_waits_behind_one_sent_long_after_it(shard: Shard) -> None:
    shard.send("AA")
    shard.at(5)
    assert shard.receive(1) == "A1"
    shard.send("B")
    shard.at(6)
    shard.delete("A1")
    assert shard.receive() == "B1 A2"


@pytest.mark.spec("FIF-18", "RCV-12")
def test_a_receive_without_a_timeout_keeps_the_order_and_frees_the_group(shard: Shard) -> None:
    shard.send("AAB")
    assert shard.receive(10, vt=0) == "A1 A2 B1"
    assert shard.receive(10, vt=0) == "A1 A2 B1"
    assert shard.counts() == [2, 2, 2]


@pytest.mark.spec("RET-10")
def test_an_expired_message_stops_blocking_its_group(ending: str) -> None:
    shard = Shard(ending, retention=60)
    shard.send("A")
    shard.at(10)
    shard.send("A")
    assert shard.receive(1, vt=3_600) == "A1"
    shard.at(59.999)
    assert shard.receive() == ""
    shard.at(60)
    assert shard.receive() == "A2"


@pytest.mark.spec("PUR-1", "PUR-3", "ATT-1")
def test_a_purge_frees_every_group_and_ends_every_attempt(shard: Shard) -> None:
    shard.send("AAB")
    assert shard.receive(1, attempt="x") == "A1"
    assert shard.purge() is None
    shard.send("A")
    assert shard.receive(attempt="x") == "A3"


@pytest.mark.spec("INF-4", "INF-6", "PRF-3")
def test_the_cap_empties_the_answer_without_an_error(ending: str) -> None:
    shard = Shard(ending, cap=3)
    shard.send("ABCDE")
    assert shard.receive() == "A1 B1 C1"
    assert shard.receive() == ""
    shard.delete("B1")
    assert shard.receive() == "D1"


@pytest.mark.spec("RCP-7", "RCP-12")
def test_a_receipt_ends_with_its_timeout(shard: Shard) -> None:
    shard.send("A")
    shard.receive(vt=1)
    shard.at(1)
    assert shard.delete("A1") == "InvalidParameterValue"
    assert shard.change("A1", 5) == "MessageNotInflight"
    assert shard.receive() == "A1"
    assert shard.change("A1", 5, lease="lease-1") == "InvalidParameterValue"


@pytest.mark.spec("DLY-8", "DLY-12")
def test_the_delay_of_the_queue_holds_for_every_message(ending: str) -> None:
    shard = Shard(ending, delay=10)
    shard.send("A")
    shard.at(4)
    shard.send("AB")
    shard.at(9.999)
    assert shard.receive() == ""
    shard.at(10)
    assert shard.receive() == "A1"
    shard.at(14)
    assert shard.receive() == "B1"


@pytest.mark.spec("DLY-10", "QUE-10")
def test_a_shorter_delay_holds_for_messages_sent_before(ending: str) -> None:
    shard = Shard(ending, delay=100)
    shard.send("A")
    shard.at(1)
    shard.set_delay(5)
    shard.at(4.999)
    assert shard.receive() == ""
    shard.at(5)
    assert shard.receive() == "A1"


@pytest.mark.spec("DLY-10", "FIF-19", "STA-13")
def test_a_longer_delay_hides_what_was_never_received(shard: Shard) -> None:
    shard.send("AAB")
    assert shard.receive(1, vt=2) == "A1"
    shard.at(2)
    shard.set_delay(10)
    assert shard.receive(vt=3) == "A1"
    shard.at(10)
    assert shard.receive() == "A1 A2 B1"


@pytest.mark.spec("DLY-10", "FIF-14")
def test_a_change_of_the_delay_hides_the_head_of_a_group_that_was_served(shard: Shard) -> None:
    shard.send("AAB")
    shard.at(1)
    assert shard.receive(1) == "A1"
    shard.delete("A1")
    shard.set_delay(10)
    assert shard.receive() == ""
    shard.at(10)
    assert shard.receive() == "A2 B1"


@pytest.mark.spec("ATT-1", "ATT-2", "ATT-8")
def test_a_retry_gets_the_same_messages_in_the_same_order(shard: Shard) -> None:
    shard.send("ABAAB")
    assert shard.receive(4, attempt="x") == "A1 A2 A3 B1"
    for second in (0, 5, 25):
        shard.at(second)
        assert shard.receive(1, attempt="x") == "A1 A2 A3 B1"
    assert shard.counts() == [1, 1, 1, 1]


@pytest.mark.spec("ATT-3")
def test_a_retry_keeps_the_receipts_and_begins_the_timeout_again(shard: Shard) -> None:
    shard.send("A")
    assert shard.receive(vt=30, attempt="x") == "A1"
    shard.at(20)
    assert shard.receive(vt=30, attempt="x") == "A1"
    assert shard.leases == {"A1": "lease-1"}
    shard.at(49.999)
    assert shard.receive() == ""
    assert shard.delete("A1", lease="lease-1") is None


@pytest.mark.spec("ATT-4")
def test_an_attempt_id_holds_for_five_minutes_from_the_first_receive(shard: Shard) -> None:
    shard.send("AA")
    assert shard.receive(1, vt=600, attempt="x") == "A1"
    shard.at(200)
    assert shard.receive(1, vt=600, attempt="x") == "A1"
    shard.at(299.999)
    assert shard.receive(1, vt=600, attempt="x") == "A1"
    shard.at(300)
    assert shard.receive(1, vt=600, attempt="x") == ""


@pytest.mark.spec("ATT-5")
@pytest.mark.parametrize("modification", ["delete", "change", "change to the same instant", "hand back"])
def test_a_retry_after_a_modification_is_a_new_receive(shard: Shard, modification: str) -> None:
    shard.send("AAAB")
    assert shard.receive(3, vt=30, attempt="x") == "A1 A2 A3"
    match modification:
        case "delete":
            shard.delete("A2")
        case "change":
            shard.change("A2", 60)
        case "change to the same instant":
            shard.change("A2", 30)
        case "hand back":
            shard.change("A2", 0)
    assert shard.receive(attempt="x") == "B1"
    assert shard.receive(attempt="x") == "B1"


@pytest.mark.spec("ATT-6")
def test_a_retry_after_the_timeout_is_a_new_receive(shard: Shard) -> None:
    shard.send("AA")
    assert shard.receive(1, vt=10, attempt="x") == "A1"
    shard.at(11)
    assert shard.receive(2, vt=10, attempt="x") == "A1 A2"
    assert shard.leases["A1"] == "lease-2"
    assert shard.counts() == [2, 1]
    assert shard.receive(1, attempt="x") == "A1 A2"


@pytest.mark.spec("ATT-8")
def test_an_empty_answer_is_not_remembered(shard: Shard) -> None:
    assert shard.receive(attempt="x") == ""
    shard.send("A")
    assert shard.receive(attempt="x") == "A1"


@pytest.mark.spec("ATT-9", "VIS-15")
def test_only_the_attempt_id_continues_before_the_timeout(shard: Shard) -> None:
    shard.send("AA")
    assert shard.receive(1, vt=43_200, attempt="x") == "A1"
    assert shard.receive(1) == ""
    assert shard.receive(1, attempt="x") == "A1"
    shard.delete("A1")
    assert shard.receive(1) == "A2"


@pytest.mark.spec("ATT-11")
def test_another_attempt_id_gets_other_groups(shard: Shard) -> None:
    shard.send("AAB")
    assert shard.receive(1, attempt="x") == "A1"
    assert shard.receive(attempt="y") == "B1"
    assert shard.receive(attempt="x") == "A1"
    assert shard.receive(attempt="y") == "B1"


@pytest.mark.spec("ATT-3", "ATT-8")
def test_a_retry_needs_no_room_under_the_cap(ending: str) -> None:
    shard = Shard(ending, cap=2)
    shard.send("ABC")
    assert shard.receive(attempt="x") == "A1 B1"
    assert shard.receive() == ""
    assert shard.receive(attempt="x") == "A1 B1"


@pytest.mark.spec("ATT-1", "RET-10")
def test_a_retry_leaves_out_what_has_expired(ending: str) -> None:
    shard = Shard(ending, retention=60)
    shard.send("A")
    shard.at(10)
    shard.send("AA")
    assert shard.receive(2, vt=3_600, attempt="x") == "A1 A2"
    shard.at(60)
    assert shard.receive(attempt="x") == "A2"
    shard.at(70)
    assert shard.receive(attempt="x") == ""


@pytest.mark.spec("ATT-6", "FIF-18")
def test_a_retry_without_a_timeout_ends_the_attempt(shard: Shard) -> None:
    shard.send("A")
    assert shard.receive(attempt="x") == "A1"
    assert shard.receive(vt=0, attempt="x") == "A1"
    assert shard.counts() == [1]
    assert shard.receive(attempt="x") == "A1"
    assert shard.counts() == [2]


@pytest.mark.spec("ATT-1", "ATT-11")
def test_an_attempt_id_used_again_stands_for_the_later_receive(shard: Shard) -> None:
    shard.send("AAB")
    assert shard.receive(2, vt=5, attempt="x") == "A1 A2"
    shard.at(5)
    assert shard.receive(1, vt=30, attempt="x") == "B1"
    assert shard.receive(1, vt=30) == "A1"
    assert shard.receive(5, attempt="x") == "B1"


@pytest.mark.spec("RWD-22", "RWD-20", "RWD-21")
def test_rewound_messages_stand_in_their_group_again(ending: str) -> None:
    shard = Shard(ending, rewind=600)
    shard.send("AABA")
    assert shard.receive(2, vt=100) == "A1 A2"
    shard.delete("A1")
    shard.at(1)
    assert shard.rewind(0) == 1
    assert shard.receive(1) == "A1"  # A2 is in flight as before, and blocks only A3
    assert shard.receive() == "B1"
    assert shard.delete("A2", "lease-1") is None
    assert shard.delete("A1", "lease-1") == "InvalidParameterValue"  # the receipt of before
    assert shard.delete("A1") is None
    assert shard.receive() == "A3"


@pytest.mark.spec("RWD-10", "RWD-22")
def test_a_rewound_group_comes_in_the_order_of_sending(ending: str) -> None:
    shard = Shard(ending, rewind=600)
    shard.send("ABAB")
    assert shard.receive() == "A1 A2 B1 B2"
    for name in ("B2", "A2", "A1", "B1"):
        shard.delete(name)
    shard.at(1)
    assert shard.rewind(0) == 4
    assert shard.receive() == "A1 A2 B1 B2"
    assert shard.counts() == [1, 1, 1, 1]


@pytest.mark.spec("RWD-20", "DLY-10")
def test_a_longer_delay_hides_what_was_rewound_whatever_its_receipt_was(ending: str) -> None:
    shard = Shard(ending, rewind=600)
    shard.comparison.looks = False  # a look would put the end of the old receipt out of mind
    shard.send("A")
    assert shard.receive(vt=10) == "A1"
    shard.at(1)
    shard.delete("A1")
    assert shard.rewind(0) == 1
    shard.set_delay(45)
    shard.at(10)
    assert shard.receive() == ""
    shard.comparison.looks = True
    shard.at(44.999)
    assert shard.receive() == ""
    shard.at(45)
    assert shard.receive() == "A1"


@pytest.mark.spec("RWD-10", "RWD-20", "RWD-22", "STA-13")
def test_a_rewind_shows_what_a_delay_would_hide_that_its_queue_got_meanwhile(ending: str) -> None:
    shard = Shard(ending, rewind=600)
    shard.send("AB")
    shard.at(3)
    shard.send("A")
    assert shard.receive() == "A1 A2 B1"
    for name in ("A1", "A2", "B1"):
        shard.delete(name)
    shard.set_delay(4)
    shard.at(5)
    assert shard.rewind(0) == 3
    assert shard.receive() == "A1 A2 B1"


@pytest.mark.spec("RWD-11", "RWD-13", "RWD-19", "RWD-15")
def test_how_far_and_how_near_a_rewind_may_go(ending: str) -> None:
    shard = Shard(ending, retention=20_000, rewind=3_600)
    shard.at(6_400)
    shard.send("A")
    assert shard.receive() == "A1"
    shard.delete("A1")
    assert shard.rewind(6_400) == 0  # now: nothing comes back, although A1 was sent at this instant
    shard.at(10_000)
    assert shard.rewind(6_399) == "InvalidParameterValue"
    assert shard.rewind(10_000.000001) == "InvalidParameterValue"
    assert shard.rewind(6_400.000001) == 0
    assert shard.rewind(6_400) == 1
    assert Shard(ending).rewind(0) == "UnsupportedOperation"


@pytest.mark.spec("RWD-11", "RWD-4")
def test_what_is_deleted_after_the_range_is_gone_at_once(ending: str) -> None:
    shard = Shard(ending, rewind=60)
    shard.send("A")
    shard.at(30)
    shard.send("A")
    shard.at(60.000001)
    assert shard.receive() == "A1 A2"
    shard.delete("A1")
    assert shard.comparison.machine.history == []
    shard.delete("A2")
    assert shard.rewind(30) == 1
    assert shard.receive() == "A2"
