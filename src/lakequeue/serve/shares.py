"""Limits the connections of each key and of each address, so that some stay free for other clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

import attrs

from lakequeue.serve.errors import RETRY_SECONDS, RequestError

SHARE = 2
"""Divisor. One key, or one address, may hold at most half of all connections."""
STRANGERS = 8
"""Divisor. One eighth of all connections is reserved for clients without a verified request."""
BEGINNERS = 8
"""Divisor. One eighth of all connections is reserved for keys that hold few connections; see ``FEW``."""
FEW = 32
"""Divisor. A key counts as a holder of few connections if it holds less than 1/32 of all connections."""


@attrs.frozen
class Holder:
    """Key and address of the last verified request on a connection. The key is None on a server without keys."""

    key: str | None
    address: str


class Shares:
    """Counts connections with a verified request, in total, by key and by address. A key or address gets only a
    share of ``limit``, the maximum number of connections. Addresses in ``proxies`` have no limit of their own.
    """

    def __init__(self, limit: int, proxies: Container[str] = ()) -> None:
        self._share = max(1, limit // SHARE)
        self._most = max(1, limit - max(1, limit // STRANGERS))
        self._crowded = self._most - limit // BEGINNERS
        self._few = max(1, limit // FEW)
        self._proxies = proxies
        self._total = 0
        self._keys: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()

    def pass_on(self, before: Holder | None, after: Holder | None) -> None:
        """Counts a connection for another holder. Raises RequestError if the new holder has reached its share."""
        if before == after:
            return
        if after is not None:
            self._check(before, after)
            self._count(after, 1)
        if before is not None:
            self._count(before, -1)

    def _check(self, before: Holder | None, after: Holder) -> None:
        of_key = 0 if after.key is None else self._keys[after.key]
        if before is None or before.key != after.key:
            self._check_share("key", of_key)
        known = before is not None and before.address == after.address
        if after.key is not None and not known and after.address not in self._proxies:
            self._check_share("address", self._addresses[after.address])
        if before is None and self._total >= (self._crowded if of_key >= self._few else self._most):
            what = f"{self._total} connections are open; the rest is reserved for other clients."
            raise RequestError("ServiceUnavailable", what, 503, False, RETRY_SECONDS)

    def _check_share(self, whose: str, held: int) -> None:
        if held >= self._share:
            what = f"The {whose} has {held} connections, all that one {whose} may have."
            raise RequestError("RequestThrottled", what, 429, True, RETRY_SECONDS)

    def _count(self, holder: Holder, change: int) -> None:
        self._total += change
        _add(self._addresses, holder.address, change)
        if holder.key is not None:
            _add(self._keys, holder.key, change)


def _add(counter: Counter[str], name: str, change: int) -> None:
    counter[name] += change
    if not counter[name]:
        del counter[name]
