"""The key file: access keys, and rules that allow actions on queues.

::

{
  "AKIDORDERS": {"secret": "...", "rules": [{"queues": ["orders*"], "actions": ["SendMessage"]}]},
  "AKIDADMIN": {"secret": "..."}
}

A key without rules may do everything. Queue patterns are case-sensitive, with ``*`` and ``?`` as in ``fnmatch``.
An action that concerns no single queue, such as ListQueues, needs the pattern ``*``.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import attrs

from lakequeue.errors import InvalidOptions
from lakequeue.serve.auth import Caller, PendingAuthentication, RequestHead
from lakequeue.serve.errors import RequestError
from lakequeue.serve.signature import Signature, mismatch
from lakequeue.serve.sqs.model import operations

ANY = "*"
ACTIONS = frozenset({*operations(), "Rewind"})
"""Actions that rules can allow: the actions of SQS, and Rewind, which only the console has."""
_KEY_ID = re.compile("[A-Za-z0-9_.-]{1,128}")
_SECRET = re.compile("[!-~]{16,256}")
_PATTERN = re.compile("[A-Za-z0-9_.*?-]+")
_UNKNOWN_KEY_SECRET = "nobody's secret, as long as those of SDKs"
"""Secret that is compared for an unknown key id, so that unknown and known key ids take the same time."""


@attrs.frozen
class AccessRule:
    """Allows actions on queues whose names match one of the patterns."""

    queues: tuple[str, ...]
    actions: frozenset[str]

    def allows(self, action: str, queue: str | None) -> bool:
        if not {action, ANY} & self.actions:
            return False
        if queue is None:
            return ANY in self.queues
        return any(fnmatchcase(queue, pattern) for pattern in self.queues)


@attrs.frozen
class Key:
    """An access key. If ``rules`` is None, the key allows every action."""

    name: str
    secret: str = attrs.field(repr=False)
    rules: tuple[AccessRule, ...] | None = None

    @property
    def key(self) -> str:
        return self.name

    def may(self, action: str, queue: str | None) -> bool:
        return self.rules is None or any(rule.allows(action, queue) for rule in self.rules)

    def may_on_any_queue(self, action: str) -> bool:
        return self.rules is None or any({action, ANY} & rule.actions for rule in self.rules)


@attrs.frozen
class _PendingSignature:
    _key: Key
    _signature: Signature

    @property
    def key(self) -> str:
        return self._key.name

    def covers(self, header: str) -> bool:
        return self._signature.covers(header)

    def verify(self, body: bytes) -> Caller:
        if not self._signature.matches(self._key.secret, body):
            raise mismatch()
        return self._key


class Keys:
    """The access keys of a server. Authenticates requests that are signed with one of these keys."""

    def __init__(self, keys: Mapping[str, Key]) -> None:
        self._keys = keys

    @classmethod
    def read(cls, path: Path, group_reads: bool = False) -> Keys:
        """Reads a key file. Raises OSError, or InvalidOptions if it is invalid or exposed to other users."""
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid not in (os.geteuid(), 0):
                raise InvalidOptions([f"{path}: it belongs to another user, who may change it"])
            if found.st_mode & (stat.S_IRWXO | stat.S_IRWXG) & ~(stat.S_IRGRP if group_reads else 0):
                raise InvalidOptions(
                    [f"{path}: other users may read or write it; only its owner should (chmod 600)"]
                )
            content = file.read()
        return cls({key.name: key for key in _KeyFileParser(str(path)).keys(content)})

    def check_head(self, head: RequestHead, now: datetime) -> PendingAuthentication:
        signature = Signature.of(head, now)
        key = self._keys.get(signature.key_id)
        if key is None:  # key ids are not secret
            raise RequestError("InvalidClientTokenId", "The access key id is not known here.", 403)
        return _PendingSignature(key, signature)

    def check_password(self, key_id: str, secret: str) -> Caller | None:
        key = self._keys.get(key_id)
        expected = key.secret if key else _UNKNOWN_KEY_SECRET
        same = hmac.compare_digest(secret.encode("utf-8", "surrogatepass"), expected.encode())
        return key if same else None


class _Object(dict[str, Any]):
    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.repeated = sorted({name for name in names if names.count(name) > 1})


class _KeyFileParser:
    """Parses a key file and collects its problems, as texts without secrets."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._problems: list[str] = []

    def keys(self, content: bytes) -> list[Key]:
        try:
            value = json.loads(content.decode(), object_pairs_hook=_Object)
        except (ValueError, RecursionError):
            raise InvalidOptions([f"{self._path}: not JSON in UTF-8"]) from None
        keys = [self._key(id, item) for id, item in self._members(value, "the file", None).items()]
        if not keys:
            self._problem("the file", "must have a key")
        if self._problems:
            raise InvalidOptions(self._problems)
        return keys

    def _key(self, id: str, value: Any) -> Key:
        where = f"key {id!a}"
        if not _KEY_ID.fullmatch(id):
            self._problem(where, "an id has 1 to 128 letters, digits, _, . and -")
        members = self._members(value, where, {"secret", "rules"})
        secret = members.get("secret")
        if not isinstance(secret, str) or not _SECRET.fullmatch(secret):
            self._problem(where, "secret must be 16 to 256 visible characters of ASCII")
        if "rules" not in members:
            return Key(id, str(secret))
        return Key(id, str(secret), tuple(self._rules(members["rules"], where)))

    def _rules(self, value: Any, where: str) -> Iterator[AccessRule]:
        for number, rule in enumerate(self._list(value, f"{where}, rules"), 1):
            here = f"{where}, rule {number}"
            members = self._members(rule, here, {"queues", "actions"})
            queues = self._texts(members.get("queues"), f"{here}, queues")
            actions = self._texts(members.get("actions"), f"{here}, actions")
            for pattern in queues:
                if not _PATTERN.fullmatch(pattern):
                    self._problem(here, f"{pattern!a} can match no name of a queue")
            for action in actions:
                if action != ANY and action not in ACTIONS:
                    self._problem(here, f"{action!a} is not an action of SQS")
            yield AccessRule(tuple(queues), frozenset(actions))

    def _members(self, value: Any, where: str, known: set[str] | None) -> dict[str, Any]:
        if not isinstance(value, _Object):
            self._problem(where, "must be an object")
            return {}
        for name in value.repeated:
            self._problem(where, f"{name!a} is given twice")
        for name in [] if known is None else sorted(value.keys() - known):
            self._problem(where, f"{name!a} is not known")
        return value

    def _texts(self, value: Any, where: str) -> list[str]:
        texts = self._list(value, where)
        if all(isinstance(text, str) and text for text in texts):
            return texts
        self._problem(where, "must be texts that are not empty")
        return []

    def _list(self, value: Any, where: str) -> list[Any]:
        if isinstance(value, list) and value:
            return value
        self._problem(where, "must be a list that is not empty")
        return []

    def _problem(self, where: str, what: str) -> None:
        self._problems.append(f"{self._path}: {where}: {what}")
