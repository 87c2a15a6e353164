"""Shares of connections: of keys, of addresses, and what is kept for others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lakequeue.model.arguments import MAX_TAGS
from lakequeue.model.attribute_values import MAX_STATEMENTS, MAX_TEXT_BYTES
from lakequeue.serve import auth, cancellation, limits, middleware, server, shares
from lakequeue.serve.connection import MAX_PIPELINED, MAX_UNREAD_BYTES, Connection
from lakequeue.serve.console.api import MAX_ROWS
from lakequeue.serve.console.documents import MAX_PAGE_BYTES
from lakequeue.serve.errors import RequestError
from lakequeue.serve.listener import Listener
from lakequeue.serve.shares import Holder, Shares
from lakequeue.serve.sqs.actions import MAX_SHARDS
from lakequeue.serve.sqs.model import MAX_ITEMS

ONE, OTHER = "AKIDONE", "AKIDOTHER"
LIMIT = 16
SHARE = LIMIT // 2


def admits(shares: Shares, key: str | None, address: str, before: Holder | None = None) -> int:
    """The status of a request on a connection; 200 if that counts now."""
    try:
        shares.pass_on(before, Holder(key, address))
    except RequestError as error:
        return error.status
    return 200


def test_one_address_holds_half_of_the_connections_unless_it_is_a_proxy():
    for proxies, status in ((), 429), (["proxy"], 200):
        shares = Shares(LIMIT, proxies)
        assert [admits(shares, f"key-{n}", "proxy") for n in range(SHARE)] == [200] * SHARE
        assert admits(shares, "another", "proxy") == status
        assert admits(shares, "another", "elsewhere") == 200


def test_some_connections_are_kept_for_keys_that_hold_few_and_some_for_strangers():
    shares = Shares(LIMIT)
    for number in range(12):
        assert admits(shares, f"key-{number % 2}", f"at-{number % 3}") == 200
    assert admits(shares, "key-0", "at-3") == 503
    assert [admits(shares, f"small-{number}", "at-3") for number in range(3)] == [200, 200, 503]
    shares.pass_on(Holder("key-1", "at-1"), None)
    assert admits(shares, "small-2", "at-3") == 200


def test_a_connection_counts_for_who_used_it_last():
    shares = Shares(LIMIT)
    for number in range(SHARE):
        assert admits(shares, ONE, f"at-{number}") == 200
    assert admits(shares, OTHER, "proxy") == 200
    assert admits(shares, ONE, "proxy", Holder(OTHER, "proxy")) == 429
    assert admits(shares, OTHER, "at-0", Holder(ONE, "at-0")) == 200
    assert admits(shares, ONE, "proxy", Holder(OTHER, "proxy")) == 200


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_few_connections_are_shared_too(limit: int):
    shares = Shares(limit)
    assert admits(shares, ONE, "here") == 200
    assert admits(shares, ONE, "there") in (429, 503)


def mib(size: int) -> str:
    return f"{size / 2**20:g} MiB"


LIMITS = {
    "body of a request that sends": (mib(limits.MAX_BODY_BYTES), f"{limits.BODY_TIMEOUT:g} s"),
    "body of another request": (f"{limits.MAX_OTHER_BODY_BYTES >> 10} KiB", f"{limits.BODY_TIMEOUT:g} s"),
    "bodies of all requests in progress": (mib(limits.MAX_TOTAL_BODY_BYTES),),
    "bodies that are not verified yet": (
        mib(limits.MAX_UNVERIFIED_BYTES),
        f"{mib(limits.MAX_UNVERIFIED_KEY_BYTES)} for the key",
    ),
    "received messages whose answer is not sent yet; they count five times while they are read": (
        mib(limits.MAX_ANSWER_BYTES),
        f"{mib(limits.MAX_ANSWER_KEY_BYTES)} for one key",
        f"wait for {limits.ANSWER_TIMEOUT:g} s",
    ),
    "head of a request": (
        f"{middleware.MAX_HEAD_BYTES >> 10} KiB",
        f"{middleware.MAX_HEADERS} headers",
        f"{Connection.head_seconds:g} s",
    ),
    "requests of a connection that wait for the answer to an earlier one": (f"{MAX_PIPELINED}",),
    "elements of a list or map": (f"{MAX_ITEMS:,}",),
    "tags of a queue": (f"{MAX_TAGS}",),
    "policy of a queue, or its redrive policies": (f"{MAX_STATEMENTS} statements", f"{MAX_TEXT_BYTES:,} bytes"),
    "shards of a queue, when a client creates it or raises them": (f"{MAX_SHARDS} ",),
    "conditions of the console": (
        f"{cancellation.MAX_PER_CALLER} for each key",
        f"{cancellation.MAX_IN_TOTAL} in all",
    ),
    "connections": (f"{server.MAX_CONNECTIONS:,} ",),
    "TLS handshake": (f"{Listener.handshake_seconds:g} s",),
    "idle connection": (f"{server.KEEP_ALIVE_SECONDS} s", f"{Connection.unverified_seconds} s while"),
    "answer that the client does not read": (f"{Connection.answer_seconds:g} s",),
    "all answers that clients do not read": (mib(MAX_UNREAD_BYTES),),
    "list of messages in the console": (f"{MAX_ROWS} messages", mib(MAX_PAGE_BYTES)),
}


def test_the_pages_name_the_limits_of_the_code():
    project = Path(__file__).parents[2]
    page = (project / "docs/operation/access.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (.+?) \| (.+) \|$", page.split("\n## Limits\n")[1], re.MULTILINE))
    for what, named in LIMITS.items():
        assert [each for each in named if each not in f"{rows[what]} "] == [], what
    assert (limits.MEMORY_FACTOR, auth.MAX_GUESSES, auth.GUESS_SECONDS) == (5, 10, 60)
    assert limits.MAX_ANSWER_KEY_BYTES * 2 == limits.MAX_ANSWER_BYTES, "SECURITY.md says half"
    assert (shares.SHARE, server.ADDRESS_SHARE) == (2, 4), "half, and a quarter"
    assert (shares.STRANGERS, shares.BEGINNERS, shares.FEW) == (8, 8, 32), "seven eighths, six eighths, one in 32"
