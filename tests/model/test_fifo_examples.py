"""The examples of FIFO queues in the requirements (see `scripts`)."""

from __future__ import annotations

import pytest

from .command_sequences import small_steps
from .scripts import Example, Shard, each_example

EXAMPLES = """
a received message blocks its group until it is deleted [FIF-1 FIF-3 FIF-4 FIF-11 DEL-5]
    0       send AA; receive 1 -> A1; receive -> nothing; delete A1; receive -> A2

a received message comes first again when it becomes visible [FIF-4 ATT-10]
    0       send AA; receive 1 for 30 -> A1
    29.999  receive 1 -> nothing
    30      receive 1 -> A1

a receive takes all of one group first [FIF-5]
    0       send ABAA; receive -> A1 A2 A3 B1

other groups fill the batch [FIF-6]
    0       send BABBABBBABBB; receive 7 -> B1 B2 B3 B4 B5 B6 B7; receive 10 -> A1 A2 A3
    0       send CCCDDDDDDDDD; receive 10 -> C1 C2 C3 D1 D2 D3 D4 D5 D6 D7

another consumer gets other groups [FIF-7 FIF-12]
    0       send AAABB; receive 2 -> A1 A2; receive 10 -> B1 B2

a group is free when the last one in flight is deleted [FIF-8]
    0       send AAA; receive 2 -> A1 A2; delete A1; receive -> nothing; delete A2; receive -> A3

deleting out of order keeps the group blocked [FIF-8]
    0       send AAA; receive 2 -> A1 A2; delete A2; receive -> nothing; delete A1; receive -> A3

a later one in flight does not block an earlier one [FIF-9]
    0       send AAA; receive 2 -> A1 A2; change A1 0; receive 3 -> A1

extending one blocks it and those after it [FIF-10]
    0       send AAA; receive for 1 -> A1 A2 A3; change A2 4
    2.5     receive 5 -> A1

a group made visible goes behind waiting ones [FIF-14]
    0       send AB
    1       receive 1 -> A1; change A1 0; receive 3 -> B1 A1

no group starves under constant load [FIF-14]
    0       send AABBCC
    1       receive 1 -> A1; send AAA; delete A1
    2       receive 1 -> B1; send AAA; delete B1
    3       receive 1 -> C1; send AAA; delete C1
    4       receive 1 -> A2; send AAA; delete A2
    5       receive 1 -> B2; send AAA; delete B2
    6       receive 1 -> C2

a group that was just served waits behind one sent long after it [FIF-14]
    0       send AA
    5       receive 1 -> A1; send B
    6       delete A1; receive -> B1 A2

a receive without a timeout keeps the order and frees the group [FIF-18 RCV-12]
    0       send AAB; receive 10 for 0 -> A1 A2 B1; receive 10 for 0 -> A1 A2 B1; received -> 2 2 2

an expired message stops blocking its group [RET-10] retention=60
    0       send A
    10      send A; receive 1 for 3600 -> A1
    59.999  receive -> nothing
    60      receive -> A2

a purge frees every group and ends every attempt [PUR-1 PUR-3 ATT-1]
    0       send AAB; receive 1 try x -> A1; purge; send A; receive try x -> A3

the cap empties the answer without an error [INF-4 INF-6 PRF-3] cap=3
    0       send ABCDE; receive -> A1 B1 C1; receive -> nothing; delete B1; receive -> D1

a receipt ends with its timeout [RCP-7 RCP-12]
    0       send A; receive for 1
    1       delete A1 -> InvalidParameterValue; change A1 5 -> MessageNotInflight
    1       receive -> A1; change A1 5 by 1 -> InvalidParameterValue

the delay of the queue holds for every message [DLY-8 DLY-12] delay=10
    0       send A
    4       send AB
    9.999   receive -> nothing
    10      receive -> A1
    14      receive -> B1

a shorter delay holds for messages sent before [DLY-10 QUE-10] delay=100
    0       send A
    1       set delay=5
    4.999   receive -> nothing
    5       receive -> A1

a longer delay hides what was never received [DLY-10 FIF-19 STA-13]
    0       send AAB; receive 1 for 2 -> A1
    2       set delay=10; receive for 3 -> A1
    10      receive -> A1 A2 B1

a change of the delay hides the head of a group that was served [DLY-10 FIF-14]
    0       send AAB
    1       receive 1 -> A1; delete A1; set delay=10; receive -> nothing
    10      receive -> A2 B1

a retry gets the same messages in the same order [ATT-1 ATT-2 ATT-8]
    0       send ABAAB; receive 4 try x -> A1 A2 A3 B1; receive 1 try x -> A1 A2 A3 B1
    5       receive 1 try x -> A1 A2 A3 B1
    25      receive 1 try x -> A1 A2 A3 B1; received -> 1 1 1 1

a retry keeps the receipts and begins the timeout again [ATT-3]
    0       send A; receive for 30 try x -> A1
    20      receive for 30 try x -> A1
    49.999  receive -> nothing; delete A1 by 1

an attempt id holds for five minutes from the first receive [ATT-4]
    0       send AA; receive 1 for 600 try x -> A1
    200     receive 1 for 600 try x -> A1
    299.999 receive 1 for 600 try x -> A1
    300     receive 1 for 600 try x -> nothing

a retry after a delete is a new receive [ATT-5]
    0       send AAAB; receive 3 for 30 try x -> A1 A2 A3; delete A2
    0       receive try x -> B1; receive try x -> B1

a retry after a change is a new receive [ATT-5]
    0       send AAAB; receive 3 for 30 try x -> A1 A2 A3; change A2 60
    0       receive try x -> B1; receive try x -> B1

a retry after a change to the same instant is a new receive [ATT-5]
    0       send AAAB; receive 3 for 30 try x -> A1 A2 A3; change A2 30
    0       receive try x -> B1; receive try x -> B1

a retry after one was handed back is a new receive [ATT-5]
    0       send AAAB; receive 3 for 30 try x -> A1 A2 A3; change A2 0
    0       receive try x -> B1; receive try x -> B1

a retry after the timeout is a new receive [ATT-6]
    0       send AA; receive 1 for 10 try x -> A1
    11      receive 2 for 10 try x -> A1 A2; received -> 2 1; receive 1 try x -> A1 A2; change A1 10 by 2

an empty answer is not remembered [ATT-8]
    0       receive try x -> nothing; send A; receive try x -> A1

only the attempt id continues before the timeout [ATT-9 VIS-15]
    0       send AA; receive 1 for 43200 try x -> A1; receive 1 -> nothing
    0       receive 1 try x -> A1; delete A1; receive 1 -> A2

another attempt id gets other groups [ATT-11]
    0       send AAB; receive 1 try x -> A1; receive try y -> B1; receive try x -> A1; receive try y -> B1

a retry needs no room under the cap [ATT-3 ATT-8] cap=2
    0       send ABC; receive try x -> A1 B1; receive -> nothing; receive try x -> A1 B1

a retry leaves out what has expired [ATT-1 RET-10] retention=60
    0       send A
    10      send AA; receive 2 for 3600 try x -> A1 A2
    60      receive try x -> A2
    70      receive try x -> nothing

a retry without a timeout ends the attempt [ATT-6 FIF-18]
    0       send A; receive try x -> A1; receive for 0 try x -> A1; received -> 1
    0       receive try x -> A1; received -> 2

an attempt id used again stands for the later receive [ATT-1 ATT-11]
    0       send AAB; receive 2 for 5 try x -> A1 A2
    5       receive 1 for 30 try x -> B1; receive 1 for 30 -> A1; receive 5 try x -> B1

rewound messages stand in their group again, before one in flight that blocks what follows [RWD-22 RWD-20 RWD-21] \
rewind_range=600
    0       send AABA; receive 2 for 100 -> A1 A2; delete A1
    1       rewind 0 -> 1; receive 1 -> A1; receive -> B1; delete A2 by 1
    1       delete A1 by 1 -> InvalidParameterValue; delete A1; receive -> A3

a rewound group comes in the order of sending [RWD-10 RWD-22] rewind_range=600
    0       send ABAB; receive -> A1 A2 B1 B2; delete B2; delete A2; delete A1; delete B1
    1       rewind 0 -> 4; receive -> A1 A2 B1 B2; received -> 1 1 1 1

a rewind shows what a delay would hide that its queue got meanwhile [RWD-10 RWD-20 RWD-22 STA-13] rewind_range=600
    0       send AB
    3       send A; receive -> A1 A2 B1; delete A1; delete A2; delete B1; set delay=4
    5       rewind 0 -> 3; receive -> A1 A2 B1

how far and how near a rewind may go [RWD-11 RWD-13 RWD-19] retention=20000 rewind_range=3600
    6400    send A; receive -> A1; delete A1; rewind 6400 -> 0
    10000   rewind 6399 -> InvalidParameterValue; rewind 10000.000001 -> InvalidParameterValue
    10000   rewind 6400.000001 -> 0; rewind 6400 -> 1

the earliest instant may be a moment old when it is used [RWD-11 RWD-24] retention=20000 rewind_range=3600
    6400    send A; receive -> A1; delete A1
    6401    send B; receive -> B1; delete B1
    10001   rewind 6400 -> InvalidParameterValue; rewind 6400.000001 -> 1; receive -> B1

a queue without a range has no rewind [RWD-15]
    0       rewind 0 -> UnsupportedOperation

what is deleted after the range is gone at once [RWD-11 RWD-4] rewind_range=60
    0       send A
    30      send A
    60.000001   receive -> A1 A2; delete A1; rewindable -> 0; delete A2; rewind 30 -> 1; receive -> A2
"""


@each_example(EXAMPLES)
def test_fifo_queues(example: Example, ending: str) -> None:
    Shard.of(example, ending, fifo=True)


@pytest.mark.spec("RWD-20", "DLY-10")
@pytest.mark.parametrize("ending", ["commit", "rebuild"])
def test_a_longer_delay_hides_rewound_messages_with_any_receipt(ending: str) -> None:
    shard = Shard(ending, fifo=True, rewind_range=600)
    shard.comparison.looks = False  # a look would put the end of the old receipt out of mind
    shard.at(0, "send A", "receive for 10 -> A1")
    shard.at(1, "delete A1", "rewind 0 -> 1", "set delay=45")
    shard.at(10, "receive -> nothing")
    shard.comparison.looks = True
    shard.at(44.999, "receive -> nothing")
    shard.at(45, "receive -> A1")


@pytest.mark.spec("DLQ-2", "DLQ-10", "HBN-23")
def test_dead_letters_move_from_behind_a_group_with_more_messages_than_a_claim_searches() -> None:
    shard = Shard(fifo=True, max_receives=1)
    with small_steps():
        shard.at(0, "send B", "receive for 10 -> B1", "send AAA")
        shard.at(10, "receive 2 hands 2 -> moving", "outgoing -> 0-0 received 1")
