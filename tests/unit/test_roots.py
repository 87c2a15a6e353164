"""Roots that work, and those that are refused by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lakequeue import InvalidParameterValue, LakeQueue
from lakequeue.storage.roots import root_of, spark_uri


@pytest.mark.parametrize("name", ["a b", "ü", "a#b", "a?b", "a+b", "a&b", "{x}", "a:b", "a*b", "100%", "a=b", "'"])
def test_a_directory_of_any_ordinary_name_works_as_path_and_as_uri(tmp_path: Path, name: str) -> None:
    queue = LakeQueue(str(tmp_path / name)).create_queue("orders")
    queue.send("a")
    by_uri = LakeQueue((tmp_path / name).as_uri())
    assert by_uri.root == str(tmp_path / name)
    assert [message.body for message in by_uri.queue("orders").receive()] == ["a"]
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", ["a%20b", "[x]", "a\tb", "a\nb", "a\\b", "a|b", "^", "\x7f", "a%2Fb"])
def test_a_directory_that_the_tables_cannot_live_in_is_refused_by_name(tmp_path: Path, name: str) -> None:
    for given in (str(tmp_path / name), (tmp_path / name).as_uri(), tmp_path / name / "below"):
        with pytest.raises(InvalidParameterValue, match="parameter root") as caught:
            LakeQueue(given)  # type: ignore[arg-type]
        assert repr(str(tmp_path / name))[1:-1] in caught.value.message
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("root", ["", " ", "\t\n"], ids=["empty", "a blank", "a tab and a line"])
def test_a_root_of_blanks_is_refused(root: str) -> None:
    with pytest.raises(InvalidParameterValue, match="Must be a path or URI"):
        LakeQueue(root)


def test_one_root_has_one_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given in ("~x", "$x", "ab:/x"):
        assert root_of(f"./{given}") == str(tmp_path / given)
    assert root_of("c:/x") == str(tmp_path / "c:/x")
    for given in ("x", "./x/", tmp_path / "x", f"{tmp_path}/x//", f"file://{tmp_path}/x", f"file:{tmp_path}/x"):
        assert root_of(given) == str(tmp_path / "x")
    assert root_of(f"file://localhost{tmp_path}/a%20b") == str(tmp_path / "a b")
    for given in ("s3://bucket/queues/", "s3a://bucket/queues", "S3N://bucket//queues"):
        assert root_of(given) == "s3://bucket/queues"
        assert spark_uri(root_of(given)) == "s3a://bucket/queues"
    assert root_of("abfs://box@account.dfs.core.windows.net/a/") == "abfss://box@account.dfs.core.windows.net/a"
    assert root_of("gcs://bucket/a") == "gs://bucket/a" == spark_uri("gs://bucket/a")
    with pytest.raises(InvalidParameterValue, match="another machine"):
        root_of("file://elsewhere/x")


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("ftp://a/b", "unsupported scheme ftp://"),
        ("s3://", "bucket is missing"),
        ("s3://a/b%20c", "%20"),
        ("gs://a/b?c", "'?'"),
        ("s3:/a/b", "begins with s3://"),
        ("dbfs:/a/b", "unsupported scheme dbfs:/"),
        ("~/queues", "give the whole path"),
        ("$HOME/queues", "give the whole path"),
    ],
)
def test_a_root_that_is_neither_a_path_nor_known_storage_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidParameterValue, match="parameter root") as caught:
        LakeQueue(uri)
    assert told in caught.value.message
