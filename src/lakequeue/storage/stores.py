"""Opens storage through obstore. Options have the names that delta-rs uses."""

from __future__ import annotations

import os
import re
import socket
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from obstore.exceptions import BaseError, UnknownConfigurationKeyError
from obstore.store import ObjectStore, from_url

from lakequeue.errors import InvalidParameterValue, QueueClientError
from lakequeue.storage.folder import Folder, LocalFolder, RemoteFolder, RequestKind
from lakequeue.storage.mounts import check_local
from lakequeue.storage.providers import PREFIXES, PROVIDERS, bare_name, scheme_of
from lakequeue.storage.roots import local_path
from lakequeue.storage.store_failures import NO_CREDENTIALS, first_line

DURABILITY = "LAKEQUEUE_DURABILITY"
"""Environment variable. With ``power``, acknowledged messages survive a power cut. With ``process``, they survive
only a crash of the process.
"""
NETWORK_FILE_SYSTEM = "LAKEQUEUE_NETWORK_FILE_SYSTEM"
"""Environment variable that allows roots on network file systems if its value is 1."""
CHECKS = "checks"
"""Directory for test files, which are written to check a new root on an object store."""
_CLIENT = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
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
"""Options of the HTTP client, which all kinds of stores accept, with or without the store's prefix."""
_PORTABLE = _CLIENT | {
    *("access_key_id", "secret_access_key", "session_token", "skip_signature"),
    *("endpoint", "endpoint_url", "region", "default_region"),
    *("storage_account_name", "storage_account_key"),
}
"""Options that are valid on other machines, too, even if environment variables of this machine set them."""
_SECRET = re.compile(
    r"key(?!_enabled)(?<!kms_key)|secret|token|sas|password|credentials|client_id|service_account|header"
)
"""Pattern for the names of options, without prefix, whose values are secret or help to get a secret."""
_DELTA = ("delta_", "aws_s3_", "dynamo", "allow_unsafe", "mount_")
"""Prefixes of options that only delta-rs knows. obstore does not get these options."""
_RETRY = re.compile(r"max_retries|retry_timeout|(?:backoff(?:_config)?\.)?(init_backoff|max_backoff|base)")
"""Pattern for names of retry options, which obstore takes as a separate argument."""
PATIENCE = {"timeout": "10s", "connect_timeout": "3s", "max_retries": "5", "retry_timeout": "20s"}
"""Default time limits and retries of a request. Environment variables may replace the two timeouts."""
_ADDRESSES = frozenset(
    {"base_url", "endpoint", "endpoint_url", "endpoint_url_s3", "metadata_endpoint", "storage_endpoint"}
)
"""Names of options, without the store's prefix, whose values are URLs."""
_BUCKETS = frozenset({"bucket", "bucket_name", "container", "container_name"})
_TEXTS = frozenset({"proxy_ca_certificate", "service_account_key"})
"""Names of options whose values may contain line breaks."""
_URL = re.compile(
    r"https?://(?:[!-?A-~]*@)?(?:[A-Z0-9._~-]+|\[[0-9A-F:.]+\])(?::(\d{1,5}))?(?:[/?#][!#-;=?-\[\]_a-z~]*)?", re.I
)
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h)[a-z]*\s*")
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


class Requests:
    """Counts the requests to an object store by kind. Repetitions of a request do not count. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counter[str]()

    def add(self, kind: RequestKind) -> None:
        with self._lock:
            self._counts[kind] += 1

    def counts(self) -> dict[str, int]:
        """Returns the number of requests of each kind."""
        with self._lock:
            return dict(self._counts)


class Store:
    """A root's storage and its options. Options never show in ``repr``.

    Args:
        options: options by the names that delta-rs uses. Environment variables apply too.
        durability: ``power`` or ``process``. None takes the environment's value, else ``power`` (DUR-1).
        network_file_system: True to permit a root on a network file system.
    """

    def __init__(
        self,
        root: str = "",
        options: Mapping[str, str] | None = None,
        durability: str | None = None,
        network_file_system: bool = False,
    ) -> None:
        self.root = root
        self.network_file_system = network_file_system
        self.options = dict(options or {})
        self.requests = Requests()
        self.syncs = (durability or os.environ.get(DURABILITY)) != "process"
        """True if local data must be on the disk before a call returns."""
        self.restored = set[str]()
        """Paths of tables in which a restore left old entries, which this process removes."""

    def __repr__(self) -> str:
        return f"Store({self.root!r})"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles the store for Spark tasks of lakequeue. Options from this process's environment are included."""
        return Store, (self.root, self.portable_options, "power" if self.syncs else "process")

    @cached_property
    def delta_options(self) -> dict[str, str]:
        """Options for delta-rs. Limits that the user has not set come from ``PATIENCE``."""
        if local_path(self.root) is not None:
            return self.options
        known = {bare_name(name) for name in (*self.options, *_environment(_CLIENT))}
        return {name: value for name, value in PATIENCE.items() if name not in known} | self.options

    @property
    def portable_options(self) -> dict[str, str]:
        """Options that other machines can use, including options from this process's environment."""
        if local_path(self.root) is not None:
            return self.options
        return _environment(_PORTABLE) | self.options

    @property
    def client_options(self) -> frozenset[tuple[str, str]]:
        """Pairs of name and value: options, and environment variables that clients of object stores read."""
        if local_path(self.root) is not None:
            return frozenset(self.options.items())
        return frozenset((_environment() | self.options).items())

    @property
    def public_options(self) -> dict[str, str]:
        """The portable options, except secrets and URLs that may contain a secret."""
        if local_path(self.root) is not None:
            return {}
        return {
            name: value
            for name, value in self.portable_options.items()
            if not _SECRET.search(bare_name(name)) and not re.search(r"://.*[@?]", value)
        }

    def folder(self, path: str) -> Folder:
        """Returns a directory of this storage. All directories of a root share their connections."""
        if self.root and path.startswith(f"{self.root}/"):
            return self._folder / path[len(self.root) + 1 :]
        return self._opened(path, lambda: self._client(path))

    def check(self) -> None:
        """Checks the options without a request. Raises InvalidParameterValue for a wrong name or value."""
        for name, value in self.options.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise InvalidParameterValue.of(repr(name), "storage_options", "Names and values must be text.")
        if local_path(self.root) is not None:
            return
        self._check_values(self.root)
        if self.options:
            try:
                self._client(self.root)
            except UnknownConfigurationKeyError as error:
                raise InvalidParameterValue(f"storage_options: {first_line(error)}") from None
            except BaseError:  # Values may still come from elsewhere. The first request shows that.
                pass

    def check_mount(self) -> None:
        """Raises QueueClientError if a local root is on a network file system."""
        local = local_path(self.root)
        if local is not None:
            check_local(local)

    def check_use(self) -> None:
        """Calls ``check_mount``, unless the user or the environment allows roots on network file systems."""
        if not (self.network_file_system or os.environ.get(NETWORK_FILE_SYSTEM) == "1"):
            self.check_mount()

    def check_creates(self) -> None:
        """Raises QueueClientError if the storage overwrites files on creation, because commits would be lost."""
        folder, name = self._folder, f"{CHECKS}/{uuid.uuid4().hex}"
        if folder.local is not None:
            return
        folder.create(name, b"first")  # Also returns None if an answer was lost and the repetition finds the file.
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
        self._check_credentials()
        return self._client(self.root)

    def _check_credentials(self) -> None:
        """Raises QueueClientError if there are neither credentials nor a metadata service that gives them."""
        bare_options = {bare_name(name): value for name, value in (os.environ | self.options).items()}
        sources = PROVIDERS[scheme_of(self.root)].credentials
        if not sources or not bare_options.keys().isdisjoint(sources):
            return
        service = urlsplit(bare_options.get("metadata_endpoint", "http://169.254.169.254"))
        try:
            socket.create_connection((service.hostname, service.port or 80), timeout=1).close()
        except OSError:
            raise QueueClientError(f"{self.root} cannot be reached: {NO_CREDENTIALS}") from None

    @property
    def _folder(self) -> Folder:
        return self._opened(self.root, lambda: self._shared)

    def _opened(self, path: str, client: Callable[[], ObjectStore]) -> Folder:
        if local_path(path) is not None:
            return LocalFolder(path, syncs=self.syncs)

        def counted(kind: RequestKind) -> ObjectStore:
            self.requests.add(kind)
            return client()

        return RemoteFolder(path, counted)

    def _check_values(self, uri: str) -> None:
        """Raises InvalidParameterValue for a wrong URL or control characters, or if an option names the bucket."""
        prefix = PROVIDERS[scheme_of(uri)].prefix
        own = {name: value for name, value in os.environ.items() if name.lower().startswith(prefix)}
        for name, value in (own | self.options).items():
            bare = bare_name(name)
            if bare in _ADDRESSES:
                found = _URL.fullmatch(value)
                if found is None or int(found[1] or 0) > 65_535:
                    raise InvalidParameterValue(f"{name} must be a URL, such as https://store.example:9000.")
            elif bare not in _TEXTS and re.search(r"[\x00-\x1f\x7f]", value):
                raise InvalidParameterValue(f"{name} must have no line breaks or other control characters.")
            elif bare in _BUCKETS and name in self.options:
                raise InvalidParameterValue(f"storage_options: the root names the bucket, not {name}.")

    def _client(self, uri: str) -> ObjectStore:
        self._check_values(uri)
        return from_url(uri, **self._arguments())

    def _arguments(self) -> dict[str, Any]:
        config: dict[str, str] = {}
        # Once it is given any client option, obstore ignores those of the environment, such as AWS_ALLOW_HTTP.
        client: dict[str, Any] = {bare_name(name): value for name, value in _environment(_CLIENT).items()}
        retry: dict[str, Any] = {}
        backoff: dict[str, Any] = {}
        for option, value in self.delta_options.items():
            name = option.lower()
            bare = bare_name(name)
            if bare in _CLIENT:
                client[bare] = value
            elif match := _RETRY.fullmatch(name):
                (backoff if match[1] else retry)[match[1] or name] = _number(name, value)
            elif not name.startswith(_DELTA):
                config[name] = value
        if backoff:
            retry["backoff"] = backoff
        return {"config": config or None, "client_options": client or None, "retry_config": retry or None}


def _environment(bare_names: Collection[str] | None = None) -> dict[str, str]:
    own = {name.lower(): value for name, value in os.environ.items() if name.lower().startswith(PREFIXES)}
    return {name: value for name, value in own.items() if bare_names is None or bare_name(name) in bare_names}


def _number(name: str, text: str) -> int | float | timedelta:
    """Converts a retry option from text to obstore's type. Raises InvalidParameterValue if it is invalid."""
    try:
        if name == "max_retries":
            return int(text)
        if name.endswith("base"):
            return float(text)
    except ValueError:
        raise InvalidParameterValue(f"storage_options: {name} must be a number.") from None
    if not re.fullmatch(f"(?:{_DURATION.pattern})+", text):
        raise InvalidParameterValue(f"storage_options: {name} must be a duration, such as 20s.")
    return timedelta(seconds=sum(int(count) * _UNITS[unit] for count, unit in _DURATION.findall(text)))
