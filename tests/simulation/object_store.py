"""An object store in memory, seen through `obstore`: answers that are late, lost or refused, and late PUTs.

A request takes effect at one moment. A client that gets no answer repeats the request, as `obstore` does; one that
gives up leaves a request behind that may still land.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, NamedTuple

from obstore.exceptions import AlreadyExistsError, GenericError

from simulation.disk import flipped
from simulation.scheduler import World

PAGE = 3
"""Objects in one answer to a listing; what comes between two pages may be in the second one."""
PATIENCE = 20.0
"""Seconds after which a client gives up on a request without an answer."""
LANDS = [3.0, PATIENCE + 0.001, PATIENCE + 0.05, PATIENCE + 0.2, PATIENCE + 20.0]
"""Seconds after which such a request lands: before the client gives up, amid what it does next, or later."""
URI = "gs://simulated/root"
_RETRIES = "retries, max_retries: 5, retry_timeout: 20s"
_BUSY = "Server returned non-2xx status code: 503 Service Unavailable: <Error><Code>SlowDown</Code></Error>"

_CONFLICT = "status code: 409 Conflict: <Error><Code>ConditionalRequestConflict</Code></Error>"


class Object(NamedTuple):
    data: bytes
    modified: float


class Bucket(NamedTuple):
    """A client, as `obstore` makes it for a URI."""

    uri: str

    def name(self, path: str) -> str:
        return f"{self.uri}/{path}" if path else self.uri


class ObjectStore:
    """What the modules of lakequeue see as `obstore`."""

    def __init__(self, world: World, objects: dict[str, Object] | None = None) -> None:
        self.world = world
        self.objects = dict(objects or {})

    def from_url(self, uri: str, **_: Any) -> Bucket:
        return Bucket(uri)

    def tables(self) -> list[str]:
        """Paths of all tables."""
        return sorted({name.partition("/_delta_log/")[0] for name in self.objects if "/_delta_log/" in name})

    def go_back(self, saved: ObjectStore, below: str) -> None:
        """Puts the objects of a copy below a path in the place of those that are there."""
        kept = {name: each for name, each in self.objects.items() if not name.startswith(below)}
        self.objects = kept | {name: each for name, each in saved.objects.items() if name.startswith(below)}

    def copy(self) -> ObjectStore:
        return ObjectStore(self.world, self.objects)

    def contents(self) -> Iterator[bytes]:
        """Of all objects."""
        return (each.data for each in self.objects.values())

    def flip(self, seed: int) -> None:
        """Changes bits of objects of tables."""
        found = [(name, name, each.data) for name, each in sorted(self.objects.items())]
        for name, data in flipped(found, seed):
            self.objects[name] = Object(data, self.objects[name].modified)

    def _request(self, method: str, name: str, creates: bool = False) -> str | None:
        """Takes a step; returns what is wrong with the answer."""
        action = self.world.step("commit" if method == "PUT" and name.endswith(".json") else "request")
        if action is None:
            return None
        kind, seconds = action
        if kind == "slow":
            self.world.sleep(seconds)
            return None
        if kind == "refuse" and creates and self.world.chance.random() < 0.5:
            raise AlreadyExistsError(f"Object at location {name} already exists: {_CONFLICT}")
        if kind == "refuse" or (kind == "late" and method != "PUT"):
            raise self._failed(method, name, f"after 5 {_RETRIES}  - {_BUSY}")
        return str(kind)

    def _put(self, name: str, data: bytes, create: bool) -> bool:
        if create and name in self.objects:
            return False
        self.objects[name] = Object(data, self.world.stamp)
        return True

    def put(self, bucket: Bucket, path: str, data: Any, mode: str = "overwrite") -> dict[str, Any]:
        name, create = bucket.name(path), mode == "create"
        content = bytes(data) if isinstance(data, (bytes, bytearray, memoryview)) else data.read()
        fault = self._request("PUT", name, create)
        if fault == "late":
            # the data of every try is the same, so it is one late request
            self.world.at(self.world.chance.choice(LANDS), lambda: self._put(name, content, create) and None)
            self.world.sleep(PATIENCE)
            raise self._failed("PUT", name, f"after 1 {_RETRIES}  - operation timed out")
        done = self._put(name, content, create)
        if fault == "lose":
            self.world.sleep(1.0)
            done = self._put(name, content, create)
        self.world.step("answer")
        if not done:
            raise AlreadyExistsError(f"Object at location {name} already exists")
        return {"e_tag": f'"{hash(content)}"'}

    def get(self, bucket: Bucket, path: str) -> Any:
        name = bucket.name(path)
        self._request("GET", name)
        data = self._object(name).data
        return SimpleNamespace(bytes=lambda: data, meta=self._meta(bucket, name))

    def get_range(self, bucket: Bucket, path: str, *, start: int, length: int) -> bytes:
        name = bucket.name(path)
        self._request("GET", name)
        return self._object(name).data[start : start + length]

    def head(self, bucket: Bucket, path: str) -> dict[str, Any]:
        name = bucket.name(path)
        self._request("HEAD", name)
        return self._meta(bucket, name)

    def delete(self, bucket: Bucket, path: str) -> None:
        name = bucket.name(path)
        self._request("DELETE", name)
        self.objects.pop(name, None)

    def rename(self, bucket: Bucket, source: str, target: str) -> None:
        self._request("PUT", bucket.name(target))
        self.objects[bucket.name(target)] = self._object(bucket.name(source))
        self.world.step("request")
        self.objects.pop(bucket.name(source), None)

    def list(
        self, bucket: Bucket, prefix: str | None = None, offset: str | None = None
    ) -> Iterator[list[dict[str, Any]]]:
        below = bucket.name(prefix or "") + "/"
        after = "" if offset is None else bucket.name(offset)
        while True:
            self._request("GET", below)
            names = sorted(name for name in self.objects if name.startswith(below) and name > after)
            page = names[:PAGE]
            if page:
                yield [self._meta(bucket, name) for name in page]
                after = page[-1]
            if len(names) <= PAGE:
                return

    def list_with_delimiter(self, bucket: Bucket, prefix: str | None = None) -> dict[str, Any]:
        below = bucket.name(prefix or "") + "/"
        self._request("GET", below)
        inside = {name[len(below) :] for name in self.objects if name.startswith(below)}
        return {"common_prefixes": sorted({name.partition("/")[0] for name in inside if "/" in name})}

    def _object(self, name: str) -> Object:
        try:
            return self.objects[name]
        except KeyError:
            raise FileNotFoundError(f"Object at location {name} not found") from None

    def _meta(self, bucket: Bucket, name: str) -> dict[str, Any]:
        found = self._object(name)
        modified = datetime.fromtimestamp(found.modified, timezone.utc)
        path, etag = name[len(bucket.uri) + 1 :], str(hash(found.data))
        return {"path": path, "size": len(found.data), "last_modified": modified, "e_tag": etag}

    def _failed(self, method: str, name: str, reason: str) -> GenericError:
        self.world.failed += 1
        place = name.replace("gs://", "https://storage.googleapis.com/")
        return GenericError(f"Generic GCS error: Error performing {method} {place} in 20.1s, {reason}")
