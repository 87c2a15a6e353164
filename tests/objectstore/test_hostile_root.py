"""Nothing that a root on an object store says leads out of its prefix (DUR-70, DUR-71)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from benchmarks.memory_store import MemoryStore
from benchmarks.object_store import BUCKET

from conformance.hostile_root import THEIRS, VALUES, Attacked, Files, Hostile
from objectstore import servers

ENTRY = "0/messages/_delta_log/00000000000000000000.json"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    """A hostile root in an empty bucket of the benchmark's store, to which variables lead."""
    store = MemoryStore()

    @contextmanager
    def put(number: int, made: Callable[[str], Files]) -> Iterator[Attacked]:
        above = f"tried/{number}"
        theirs = (
            "x",
            "beside/x",
            "other/x",
            *(f"{above}/{name}" for name in ("x", "beside/x", f"beside/{ENTRY}")),
        )
        files = made(f"s3://{BUCKET}/other")
        store.hold(dict.fromkeys(theirs, THEIRS) | {f"{above}/root/{name}": files[name] for name in files})

        def beside() -> dict[str, object]:
            own = (f"{above}/root/", f"{above}/copy/")
            return {name: found for name, found in store.objects.items() if not name.startswith(own)}

        yield Attacked(*(f"s3://{BUCKET}/{above}/{name}" for name in ("root", "copy")), files, beside)

    made = Hostile(tmp_path_factory.mktemp("hostile") / "root", put)
    with servers.in_memory(store) as (url, _), servers.found_by_variables(url):
        yield made


@pytest.mark.objectstore
@pytest.mark.spec("DUR-70", "DUR-71")
@pytest.mark.parametrize(
    "kind",
    [
        "queues/N.parquet key",
        "queues/_delta_log/N.checkpoint.parquet add.path",
        "q/N/messages/_delta_log/N.json add.path",
        "q/N/receipts/_delta_log/N.json remove.path",
        "q/manifests/sN.json files.file.path",
    ],
)
def test_a_key_outside_the_prefix_is_not_used(hostile: Hostile, kind: str) -> None:
    [place] = (place for place in hostile.places if place.kind == kind)
    assert hostile.alone(place, VALUES[1], [Attacked.python]) == []


@pytest.mark.objectstore
@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_every_value_at_every_place_is_data(hostile: Hostile, value: str) -> None:
    assert hostile.wrong(hostile.places, value) == []
