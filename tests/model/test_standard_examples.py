"""The rules of standard queues, one by one (see `scripts`)."""

from __future__ import annotations

import pytest

from .scripts import Example, Shard, each_example

EXAMPLES = """
a receive takes what is there but not more than asked [RCV-2 RCV-14 STA-1 STA-2 STA-6]
    0       send 7; receive 3 -> 0 1 2; receive -> 3 4 5 6; receive -> nothing

a received message is hidden until its timeout ends [RCV-3 RCV-4 QUE-5 STA-3 INF-1] visibility_timeout=30
    0       send
    5       receive -> 0
    34.999999   receive -> nothing; counts -> 0 1 0
    35      counts -> 1 0 0; receive -> 0

a receive may bring its own timeout [RCV-5 VIS-12] visibility_timeout=30
    0       send; receive for 5 -> 0
    5       receive -> 0
    34      receive -> nothing
    35      receive -> 0

receive counts rise and the first receipt is remembered [RCV-6 RCV-11 STA-7 STA-11 STA-14]
    0       send
    1       receive -> 0; received -> 1
    31      receive -> 0; received -> 2
    61      receive -> 0; received -> 3; first -> 1

a receive with timeout zero leaves the message visible and counts [RCV-12]
    0       send; receive for 0 -> 0; receive for 0 -> 0; received -> 2; counts -> 1 0 0

the oldest available message comes first [RCV-16]
    0       send 6; receive 2 for 10 -> 0 1; receive 1 -> 2; receive 1 for 5 -> 3; delete 2
    5       receive 2 -> 3 4
    10      receive -> 0 1 5

a delayed message arrives exactly when its delay ends [DLY-1 DLY-2 DLY-11 STA-8 EXM-11]
    10      send delayed 45 0; receive for 300 -> 1
    54.999999   receive -> nothing
    55      receive -> 0

each message is counted once [DLY-12 QUE-23]
    0       send delayed 0 0 45; receive 1 -> 0; counts -> 1 1 1; stored -> 3

the head passes delayed messages as one row [DLY-1]
    0       send delayed 9 5 7 0 0; receive 1 -> 3; rows -> 0-2 3-3
    5       receive -> 1 4; rows -> 0-0 1-1 2-2 3-3 4-4
    9       receive -> 0 2

an empty receive over delayed messages changes nothing [RCV-14 DLY-1]
    0       send delayed 9 9 9; receive -> nothing; rows -> nothing

a message without delay is available whatever the clock says [DLY-1 STA-8]
    100     send
    50      receive -> 0

the next event is the first end of a delay or timeout [LPL-4]
    0       send delayed 0 40 20; next -> 20; receive 1 for 10 -> 0; next -> 10
    1       change 0 60; next -> 20
    2       delete 0
    30      next -> 40
    40      next -> nothing

only a delete removes a message [DEL-1 DEL-2 DEL-3 RCV-7 STA-4 STA-10 STA-12]
    0       send; receive -> 0; stored -> 1
    29      delete 0 -> done; stored -> 0; rows -> nothing
    30      receive -> nothing

deleting again succeeds silently [RCP-10 DEL-7]
    0       send; receive -> 0
    1       delete 0 -> done; delete 0 -> nothing; delete 0 -> nothing

an older receipt deletes nothing on a lenient queue [RCP-5 RCP-6 DEL-8 PRF-10]
    0       send; receive for 1 -> 0
    1       receive for 60 -> 0
    31      delete 0 by 1 -> nothing; counts -> 0 1 0
    32      delete 0 -> done

an older receipt is refused on a strict queue [RCP-7 PRF-10] strict=1
    0       send; receive for 1 -> 0
    1       receive for 60 -> 0
    5       delete 0 by 1 -> InvalidParameterValue (Value H for parameter); stored -> 1

an ended receipt is refused on a strict queue [RCP-7 PRF-10] strict=1
    0       send; receive for 30 -> 0
    30      delete 0 -> InvalidParameterValue (The receipt handle has expired); stored -> 1

the latest receipt outlives its timeout on a lenient queue [RCP-8 VIS-2 VIS-13]
    0       send 2; receive for 1 -> 0 1
    2       delete 0 -> done; change 1 30
    31.9    receive -> nothing
    32      receive -> 1

an older receipt changes nothing [VIS-2 RCP-13 VIS-6 ERR-4]
    0       send; receive for 30 -> 0; change 0 100
    100     receive for 30 -> 0
    101     change 0 500 by 1 -> InvalidParameterValue (expired)
    130     receive -> 0

a deleted message cannot be changed [RCP-11]
    0       send; receive -> 0
    1       delete 0
    2       change 0 30 -> InvalidParameterValue (does not exist or is not available)

a message whose receipt ended cannot be changed on a strict queue [RCP-12] strict=1
    0       send; receive for 1 -> 0
    2       change 0 5 -> MessageNotInflight

a message that was handed back can be deleted and not be changed [RCP-12]
    0       send; receive for 30 -> 0
    1       change 0 0; change 0 5 -> MessageNotInflight
    2       delete 0 -> done

a change to less counts from the call [EXM-3 VIS-1 VIS-3 VIS-5] visibility_timeout=60
    0       send; receive -> 0
    15      change 0 10
    24.999999   receive -> nothing
    25      receive -> 0

a change to more counts from the call [EXM-3 VIS-1 VIS-3 VIS-5] visibility_timeout=60
    0       send; receive -> 0
    15      change 0 120
    134.999999  receive -> nothing
    135     receive -> 0

a change to zero hands the message back at once [VIS-4 VIS-16 BAT-3]
    0       send 3; receive 3 -> 0 1 2
    3       change 1 0; receive -> 1; received -> 1 2 1; first -> 0 0 0

a change keeps count and receipt [VIS-16]
    0       send; receive -> 0
    1       change 0 60; received -> 1
    60      delete 0 by 1 -> done

a receipt ends twelve hours after the receive at the latest [VIS-9]
    0       send; receive for 43200 -> 0
    3600    change 0 43200 -> InvalidParameterValue (Value 43200 for parameter visibility_timeout)
    3600    change 0 39600.5 -> InvalidParameterValue (Value 39600.5 for)
    3600    change 0 39601 -> InvalidParameterValue ([43200 seconds])
    3600    extend 1 0-0 39601 -> InvalidParameterValue (beyond the limit); change 0 39600
    43300   change 0 0

a change to what is already so needs no commit []
    0       send; receive for 30 -> 0
    10      change 0 20; rows -> 0-0

a full queue refuses a receive [INF-2 INF-3 INF-5 ERR-3 PER-3] cap=5
    0       send 9; receive -> 0 1 2 3 4
    1       receive 1 -> OverLimit
    2       delete 3; receive -> 5
    30      receive -> 0 1 2 4

a receive takes what room there is [INF-6 INF-11] cap=5
    0       send 9; receive 3 -> 0 1 2; receive -> 3 4

a receive gets nothing at the cap until an expired message makes room [INF-7] cap=2 retention=60
    0       send 9; receive 5 for 100 -> 0 1
    1       receive 1 -> OverLimit (in flight); next -> 60

an ended receipt comes back if there is room [INF-11] cap=2
    0       send 4; receive for 1 -> 0 1
    1       receive 1 for 30 -> 0
    2       change 0 9 by 1 -> InvalidParameterValue (expired); change 1 9
    3       change 1 0; receive 1 -> 1

an ended receipt does not come back without room [INF-11]
    0       send 4; receive 3 for 1 -> 0 1 2; set cap=2
    2       extend 1 0-2 9 -> 2 done 1 lost; change 2 9 -> OverLimit

a message is gone when its retention ends [RET-1 RET-9 STA-5] retention=60
    0       send
    1       send
    59.999999   receive 1 for 0 -> 0
    60      receive for 0 -> 1
    61      receive -> nothing

delayed and received messages expire as well [RET-2 RET-3 STA-5] retention=60
    0       send delayed 59 0 0
    55      receive 1 -> 1
    59      counts -> 2 1 0
    60      counts -> 0 0 0
    90      receive -> nothing

deleting an expired message succeeds and changing it does not [DEL-9 RET-3] retention=60
    0       send
    5       receive for 60 -> 0
    70      change 0 5 -> InvalidParameterValue (does not exist); delete 0 -> nothing

a new retention applies at once [RET-6 QUE-25] retention=345600
    0       send
    172800  send; set retention=86400 -> done; receive for 0 -> 1; set retention=777600
    864000  receive for 0 -> 1; set retention=345600 version=3 -> nothing

what had expired before a longer retention stays gone [RET-6] retention=60
    0       send
    50      send
    60      set retention=345600
    61      receive -> 1

expiry rides along with the next commit [RET-9 DLT-7] retention=60
    0       send 2; receive for 30 -> 0 1; delete 1
    50      send
    60      delete 0 -> nothing; receive -> 2; rows -> 2-2

an expire command reports and commits what expired [RET-9] retention=60
    0       send 2; receive for 30 -> 0 1; delete 0
    50      send
    59      expire -> 0
    60      expire -> 1; rows -> nothing; expire -> 0

a purge removes waiting, received and delayed messages [PUR-1 PUR-3 PUR-4]
    0       send delayed 0 50 0 0; receive 1 -> 0; receive 1 -> 2
    1       purge; rows -> nothing; counts -> 0 0 0; purged -> 4
    2       delete 0 -> nothing; change 0 5 -> InvalidParameterValue (does not exist)
    5       send
    100     receive -> 4

a second purge waits sixty seconds [PUR-2]
    0       send; purge
    59.999999   purge -> PurgeQueueInProgress (on orders is allowed every 60 seconds)
    60      purge

a new visibility timeout applies to later receives [QUE-5 QUE-25]
    0       send 2; receive 1 -> 0; set visibility_timeout=60; receive 1 -> 1
    30      receive for 0 -> 0
    59      receive for 0 -> 0
    60      receive for 0 -> 0 1

a closed shard refuses everything [QUE-13]
    0       send; receive -> 0; close
    1       receive -> QueueDoesNotExist; delete 0 -> QueueDoesNotExist; purge -> QueueDoesNotExist
    1       expire -> QueueDoesNotExist; close -> QueueDoesNotExist

a lease settles what it still holds [DEL-2 RCP-6]
    0       send delayed 1 1 1 1 0 1 1 1 1 1; receive -> 4
    1       receive -> 0 1 2 3 5 6 7 8 9; finish 2 0-9 but 2 4 7 -> 7 done 1 lost 2 released
    1       rows -> 2-2 4-4 7-7; receive -> 2 7
    2       finish 2 0-9 -> 0 done 10 lost

releasing a lease makes the rest of it visible [VIS-4]
    0       send 3; receive -> 0 1 2
    1       delete 1; release 1 0-2 -> 2 done 1 lost; release 1 0-2 -> 0 done 3 lost; receive -> 0 2

an ended lease is lost on strict queues [RCP-7] strict=1
    0       send 3; receive for 30 -> 0 1 2
    30      finish 1 0-2 -> 0 done 3 lost; extend 1 0-2 9 -> 0 done 3 lost; release 1 0-2 -> 0 done 3 lost

an ended lease goes on on lenient queues [RCP-8]
    0       send 3; receive for 30 -> 0 1 2
    30      extend 1 0-2 9 -> 3 done
    39      release 1 0-2 -> 3 done; finish 1 0-2 -> 3 done

neighbours in the same state are one row []
    0       send 3; receive for 30 -> 0 1 2
    5       change 0 40; change 2 40; rows -> 0-0 1-1 2-2; change 1 40; rows -> 0-2

a split leaves the rows around it []
    0       send 5; receive for 30 -> 0 1 2 3 4
    1       delete 2; rows -> 0-1 3-4

time never goes back []
    0       send 2
    50      receive 1 for 30 -> 0
    20      receive 1 for 30 -> 1
    79      receive -> nothing
    80      receive -> 0 1

a shard goes on where the last process stopped [DLT-3 RCP-8]
    0       send delayed 20 0 0 0 0 0; receive 2 -> 1 2
    1       change 1 0; counts -> 4 1 1
    20      receive for 0 -> 0 1 3 4 5

rewound messages are visible though a delay that was ended early is not over \
[RWD-10 RWD-20 STA-13] rewind_range=3600
    0       send delayed 0 900
    1       send delayed 1
    2       send
    3       show 1-1; receive -> 0 1 2 3; finish 1 0-3 -> 4 done
    4       rewind 0 -> 4; counts -> 4 0 0; rows -> 0-0 1-1 2-3; receive -> 0 1 2 3

what is sent while too many are delayed is held until fewer are \
[INF-8 INF-9 DLY-5 QTA-5 DLY-11 LPL-4 STA-13] delayed_cap=2
    0       send delayed 10 10 0
    1       receive -> nothing; counts -> 0 0 2 1; next -> 10
    9.999999    receive -> nothing
    10      receive -> 0 1 2

held messages are released in the order of sending with what is left of their delays [INF-9 DLY-11] delayed_cap=2
    0       send delayed 10 20
    1       send delayed 5 30 0
    2       send; counts -> 0 0 2 4
    7       counts -> 0 0 2 4
    10      receive -> 0 2; counts -> 0 2 2 2
    20      receive -> 1 4 5; counts -> 0 5 1 0

messages sent before the limit was reached are received as ever [INF-9 STA-1] delayed_cap=2
    0       send delayed 0 10 0 10 0; receive -> 0 2; counts -> 0 2 2 1

a lower limit of delayed messages holds nothing that was released [INF-9] delayed_cap=4
    0       send delayed 10 20 30 0 0; counts -> 2 0 3 0; set delayed_cap=1
    1       send; counts -> 2 0 3 1
    20      counts -> 4 0 1 1
    30      receive -> 0 1 2 3 4 5

a higher limit or none releases, and a first one leaves what is there [INF-9] delayed_cap=1
    0       send delayed 10 10 10 0; counts -> 0 0 1 3; set delayed_cap=3; counts -> 0 0 3 1
    0       set delayed_cap=none; counts -> 1 0 3; set delayed_cap=1; counts -> 1 0 3 0
    1       send; counts -> 1 0 3 1

a first limit counts what is delayed already [INF-9]
    0       send delayed 10 10; counts -> 0 0 2; set delayed_cap=2
    1       send; counts -> 0 0 2 1
    10      counts -> 3 0 0 0

held messages are purged [INF-9 PUR-1 PUR-3] delayed_cap=1
    0       send delayed 10 0 0
    1       purge; counts -> 0 0 0 0; stored -> 0
    2       send delayed 20 0; counts -> 0 0 1 1

held messages expire [INF-9 RET-2] delayed_cap=1 retention=60
    0       send delayed 900 0
    50      send
    59      counts -> 0 0 1 2; next -> 60
    60      counts -> 1 0 0 0

what comes back from a move was received as often and as early as before [DLQ-2 DLQ-4 DLQ-8] max_receives=2
    0       send
    1       receive for 1 -> 0
    2       receive for 1 -> 0
    3       receive -> moving; outgoing -> 0-0 received 2
    4       move_back 1 -> 1
    5       receive key unknown -> 0; received -> 3; first -> 1

what comes back from a redrive was received as often and as early as before [DLQ-2 DLQ-4 DLQ-8] max_receives=2
    0       send
    1       receive for 1 -> 0
    2       receive for 1 -> 0
    3       move 0-0 -> 1; outgoing -> 0-0 received 0
    4       move_back 1 -> 1
    5       receive key unknown -> 0; received -> 3; first -> 1
"""


@each_example(EXAMPLES)
def test_standard_queues(example: Example, ending: str) -> None:
    Shard.of(example, ending)


@pytest.mark.parametrize(
    "step", ["receive -> 1", "receive -> nothing", "rewind 0", "rewind 0 -> 0", "rewind 0 -> 1"]
)
def test_a_script_with_another_answer_fails(step: str) -> None:
    with pytest.raises(AssertionError, match=step):
        Shard().at(0, "send", "receive 1 for 0 -> 0", step)


def test_a_script_with_another_reason_fails() -> None:
    Shard().at(0, "rewind 0 -> UnsupportedOperation")
    with pytest.raises(AssertionError, match="rewind 0"):
        Shard().at(0, "rewind 0 -> UnsupportedOperation (no reason)")
