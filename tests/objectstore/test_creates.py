"""A storage that overwrites what it should only create would lose commits: no root is made there."""

from __future__ import annotations

from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from lakequeue import LakeQueue, QueueClientError
from lakequeue.storage.stores import Store


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    store = MemoryStore()
    monkeypatch.setattr(Store, "_client", lambda *_: store)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    return store


def test_a_storage_that_creates_once_is_accepted_and_left_clean(memory: MemoryStore) -> None:
    Store("s3://lake/root").check_creates()
    assert not [each for chunk in obstore.list(memory) for each in chunk]


@pytest.mark.parametrize("answer", ["overwrites", "lies"])
def test_a_storage_that_overwrites_is_refused(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    put = obstore.put

    def overwriting(store: MemoryStore, name: str, data: bytes, mode: str = "overwrite") -> Any:
        known = name in {each["path"] for chunk in obstore.list(store) for each in chunk}
        done = put(store, name, data, mode="overwrite")
        if known and answer == "lies":
            raise obstore.exceptions.AlreadyExistsError(name)
        return done

    monkeypatch.setattr(obstore, "put", overwriting)
    with pytest.raises(QueueClientError, match="overwrites files"):
        LakeQueue("s3://lake/root").create_queue("orders")
    assert not [each for chunk in obstore.list(memory) for each in chunk]
