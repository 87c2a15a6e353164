"""The walkthrough that SDKs without tests of their own share: what a program prints of it, part by part."""

from __future__ import annotations

import pytest

from clients.running_tools import pairs

WALKED = {
    "standard": {
        "SameUrl": "true",
        "Body": "one <&>",
        **dict.fromkeys(("SameId", "SameMD5", "SameAttributesMD5", "SameAttributes"), "true"),
        "ReceiveCount": "1",
        "WhileInvisible": "0",
        "Waited": "true",
        "Woken": "true",
        "ReceivedAgain": "2",
        "Sent": "a b",
        "NotSent": "bad InvalidMessageContents true",
        "Bodies": "two three",
        "Deleted": "n0 n1",
        "NotDeleted": "n2 ReceiptHandleIsInvalid true",
        "VisibilityTimeout": "45",
        "Visible": "0",
        "InFlight": "0",
    },
    "fifo": {
        "SentOnce": "true",
        "Bodies": "one two three",
        "Group": "g",
        "SameNumber": "true",
        "Ascending": "true",
        "WhileLocked": "0",
        "Deleted": "n0 n1 n2",
        "Left": "0",
    },
    "error": {
        "Status": "400",
        "QueueDoesNotExist": "true",
        "Code": "AWS.SimpleQueueService.NonExistentQueue",
        "Message": "The specified queue does not exist.",
        "RequestId": "36",
    },
}
"""What each of these programs prints: `standard.Body=one <&>` and so on."""

each_part = pytest.mark.parametrize(
    "part",
    [
        pytest.param(
            "standard",
            marks=pytest.mark.spec("BAT-4", "DEL-2", "DEL-10", "MSA-3", "RCV-6", "RCV-14", "SND-3", "VIS-1"),
        ),
        pytest.param("fifo", marks=pytest.mark.spec("BAT-6", "DDP-8", "QUE-11", "SEQ-2", "SEQ-4")),
        pytest.param("error", marks=pytest.mark.spec("ERR-1", "ERR-6", "QUE-13")),
    ],
)


def parts(told: str) -> dict[str, dict[str, str]]:
    """Names and values by the part of the walkthrough that they belong to; no name comes twice."""
    found: dict[str, dict[str, str]] = {}
    for name, value in pairs(told):
        part, _, name = name.partition(".")
        values = found.setdefault(part, {})
        assert name not in values, f"{part}.{name} was printed twice:\n{told}"
        values[name] = value
    return found
