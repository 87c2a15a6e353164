"""The store of the benchmark answers as moto does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import obstore
import pytest
from benchmarks.memory_store import PAGE
from benchmarks.object_store import BUCKET
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store

from objectstore import servers

NAMES = ["a/1", "a/b/2", "a/b/3", "a/c & d/4", "a/\u00e4", "ab"]


@pytest.fixture(scope="module")
def stores() -> Iterator[tuple[S3Store, S3Store]]:
    """One of moto, one of the benchmark."""
    options: dict[str, Any] = {"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
    options["client_options"] = {"allow_http": True}
    options["prefix"] = "compared"  # all servers of moto in a process have the same bucket
    with servers.served() as (moto, _), servers.in_memory() as (memory, _):
        yield S3Store(BUCKET, endpoint=moto, **options), S3Store(BUCKET, endpoint=memory, **options)


def both(stores: tuple[S3Store, S3Store], ask: Callable[[S3Store], Any]) -> Any:
    """The answer of both stores, which is the same; an error is one by its class."""

    def answer(store: S3Store) -> Any:
        try:
            return ask(store)
        except Exception as error:
            return type(error)

    first, second = map(answer, stores)
    assert first == second
    return first


def listed(store: S3Store, **asked: Any) -> list[tuple[str, int]]:
    return [(one["path"], one["size"]) for page in obstore.list(store, **asked) for one in page]


def folders(store: S3Store) -> tuple[list[str], list[str]]:
    found = obstore.list_with_delimiter(store, "a")
    return [*found["common_prefixes"]], [one["path"] for one in found["objects"]]


def test_objects_are_created_once_read_in_parts_listed_and_deleted(stores: tuple[S3Store, S3Store]) -> None:
    for name in NAMES:
        both(stores, lambda store: obstore.put(store, name, name.encode() * 3, mode="create")["e_tag"])  # noqa: B023
    assert both(stores, lambda store: obstore.put(store, "a/1", b"again", mode="create")) is AlreadyExistsError
    assert both(stores, lambda store: obstore.get(store, "a/1").bytes().to_bytes()) == b"a/1a/1a/1"
    assert both(stores, lambda store: obstore.get_range(store, "a/1", start=1, end=4).to_bytes()) == b"/1a"
    assert both(stores, lambda store: obstore.get_range(store, "a/1", start=7, end=20).to_bytes()) == b"/1"
    assert both(stores, lambda store: obstore.get_range(store, "a/1", start=20, end=30).to_bytes()) is not None
    assert both(stores, lambda store: obstore.head(store, "a/1")["size"]) == 9
    for missing in (obstore.get, obstore.head):
        assert both(stores, lambda store: missing(store, "nothing")) is FileNotFoundError  # noqa: B023

    assert len(both(stores, lambda store: listed(store, prefix="a"))) == 5
    assert both(stores, lambda store: listed(store, prefix="a", offset="a/b/2"))[0][0] == "a/b/3"
    assert both(stores, folders)[0] == ["a/b", "a/c & d"]

    def deleted(store: S3Store) -> list[tuple[str, int]]:
        obstore.delete(store, "a/1")
        obstore.delete(store, ["a/b/2", "a/c & d/4", "missing"])
        return listed(store)

    assert [name for name, _ in both(stores, deleted)] == ["a/b/3", "a/\u00e4", "ab"]


def test_a_large_object_is_written_in_parts(stores: tuple[S3Store, S3Store]) -> None:
    data = b"".join(bytes([number]) * 2**20 for number in range(13))
    both(stores, lambda store: obstore.put(store, "large", data, chunk_size=5 * 2**20)["e_tag"] is None)
    assert both(stores, lambda store: obstore.get(store, "large").bytes().to_bytes()) == data
    both(stores, lambda store: obstore.delete(store, "large"))


def test_long_listings_come_in_pages(stores: tuple[S3Store, S3Store]) -> None:
    _, store = stores
    names = [f"long/{number:05}/{part}" for number in range(PAGE // 2 + 1) for part in "ab"]
    for name in names:
        obstore.put(store, name, b"", mode="create")
    assert [name for name, _ in listed(store, prefix="long")] == names
    found = obstore.list_with_delimiter(store, "long")
    assert [*found["common_prefixes"]] == sorted({name.rpartition("/")[0] for name in names})
