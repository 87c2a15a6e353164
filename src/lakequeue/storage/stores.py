"""How storage is reached: one set of options for delta-rs, which commits, and obstore, which reads other files."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from obstore.exceptions import BaseError, UnknownConfigurationKeyError
from obstore.store import ObjectStore, from_url

from lakequeue.errors import InvalidParameterValue, QueueClientError
from lakequeue.storage.folder import Folder
from lakequeue.storage.roots import local_path

CHECKS = "checks"
"""Directory of a new remote root, where it is seen what the storage can do."""
_PREFIXES = ("aws_", "azure_", "google_")
_CLIENT = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "read_timeout",
        "timeout",
        "user_agent",
    }
)
"""Options of every store's HTTP client, with or without a prefix."""
_DELTA = ("max_retries", "retry_timeout", "backoff", "delta_", "aws_s3_", "dynamo", "allow_unsafe", "mount_")
"""Beginnings of options that only delta-rs knows."""


class Store:
    """A root's storage and the options that reach it. Options never show in ``repr``.

    Args:
        root: local path or URI.
        options: options of delta-rs by their own names; those of the environment hold too.
    """

    def __init__(self, root: str = "", options: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.options = dict(options or {})

    def __repr__(self) -> str:
        return f"Store({self.root!r})"

    def folder(self, path: str) -> Folder:
        """A directory of this storage; all of one root share their connections."""
        if self.root and path.startswith(f"{self.root}/"):
            return self._folder / path[len(self.root) + 1 :]
        return Folder(path, lambda: self._client(path))

    def check(self) -> None:
        """Checks the options without a request.

        Raises:
            InvalidParameterValue: names an option that no library knows, or one whose value is not text.
        """
        for name, value in self.options.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise InvalidParameterValue.of(repr(name), "storage_options", "Names and values must be text.")
        if self.options and local_path(self.root) is None:
            try:
                self._client(self.root)
            except UnknownConfigurationKeyError as error:
                raise InvalidParameterValue(f"storage_options: {str(error).splitlines()[0]}") from None
            except BaseError:  # values may still come from elsewhere; the first request tells
                pass

    def check_creates(self) -> None:
        """Checks that of two writers of a new file only one succeeds, on which every commit relies.

        Raises:
            QueueClientError: the storage overwrites files that it was asked to create.
        """
        folder, name = Folder(self.root, lambda: self._shared), f"{CHECKS}/{uuid.uuid4().hex}"
        if folder.local is not None:
            return
        folder.create(name, b"first")  # also when the answer was lost, and the repetition finds it there
        overwritten = folder.create(name, b"second")
        kept = folder.read(name)
        folder.remove([name])
        if overwritten or kept != b"first":
            raise QueueClientError(
                f"{self.root}: this storage overwrites files that must only be created, as if it ignored "
                "If-None-Match, so two writers would lose messages; nothing was created"
            )

    @cached_property
    def _shared(self) -> ObjectStore:
        return self._client(self.root)

    @property
    def _folder(self) -> Folder:
        return Folder(self.root, lambda: self._shared)

    def _client(self, uri: str) -> ObjectStore:
        return from_url(uri, **self._arguments())

    def _arguments(self) -> dict[str, Any]:
        config: dict[str, str] = {}
        client: dict[str, Any] = {}
        for given, value in self.options.items():
            name = given.lower()
            bare = next((name.removeprefix(each) for each in _PREFIXES if name.startswith(each)), name)
            if bare in _CLIENT:
                client[bare] = value
            elif not name.startswith(_DELTA):
                config[name] = value
        return {"config": config or None, "client_options": client or None}
