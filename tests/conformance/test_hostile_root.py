"""Nothing that a root says leads out of it, whatever string somebody put where (DUR-70 to DUR-74)."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from conformance.hostile_root import VALUES, Attacked, Hostile, on_disk
from lakequeue.storage import delta_log
from lakequeue.storage.folder import LocalFolder

pytestmark = pytest.mark.xdist_group("hostile_root")
"""One process makes the root and learns what each verb does with it, which takes longer than a test."""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Hostile:
    return on_disk(tmp_path_factory.mktemp("hostile"))


@pytest.mark.spec("DUR-70", "DUR-71")
@pytest.mark.parametrize(
    "kind",
    ["queues/N.parquet key", "q/N/messages/_delta_log/N.json add.path", "q/manifests/sN.json files.file.path"],
)
def test_a_name_that_leads_elsewhere_is_not_followed(hostile: Hostile, kind: str) -> None:
    [place] = (place for place in hostile.places if place.kind == kind)
    assert hostile.alone(place, VALUES[1], [Attacked.python]) == []


@pytest.mark.spec("DUR-70", "DUR-71")
@pytest.mark.parametrize(
    "kind",
    [
        "q/N/messages/_delta_log/N.json add.partitionValues.opened_at",
        "stats/_delta_log/N.checkpoint.parquet add.partitionValues.day",
    ],
)
def test_a_partition_without_a_value_is_damage(hostile: Hostile, kind: str) -> None:
    [place] = (place for place in hostile.places if place.kind == kind)
    assert hostile.alone(place, "", [Attacked.python]) == []


@pytest.mark.spec("DUR-70")
def test_a_log_whose_names_were_followed_would_be_reported(
    hostile: Hostile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_log, "file_below", lambda name, encoded: unquote(name))
    monkeypatch.setattr(LocalFolder, "_below", lambda _, name: name)
    [place] = (place for place in hostile.places if place.kind == "q/N/messages/_delta_log/N.json add.path")
    [told] = hostile.alone(place, VALUES[1], [Attacked.python])
    assert told.endswith("copy changes what is beside the root")


@pytest.mark.spec("DUR-70", "DUR-71")
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_strings_of_all_sorts_of_files_are_data(hostile: Hostile) -> None:
    assert hostile.wrong(hostile.places[::40], VALUES[1]) == []


@pytest.mark.spec("DUR-70", "DUR-71")
@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_every_value_at_every_place_is_data(hostile: Hostile, value: str) -> None:
    assert hostile.wrong(hostile.places, value) == []
