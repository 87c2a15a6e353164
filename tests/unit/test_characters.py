"""Characters that a message cannot carry, counted in Parquet files."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakequeue.storage.bulk.characters import rows_with_refused_characters

ALLOWED = [*"\t\n\r ~\x7f\x9fü", "\ud7ff", "\ue000", "\ufffd", "\U00010000", "\U0010ffff", "😀"]
REFUSED = ["\x00", "\x08", "\x0b", "\x0c", "\x0e", "\x1f", "\ufffe", "\uffff"]


def written(tmp_path, bodies, **options):
    path = str(tmp_path / "bodies.parquet")
    pq.write_table(pa.table({"body": pa.array(bodies, pa.string())}), path, **options)
    return path


@pytest.mark.spec("SND-12")
@pytest.mark.parametrize("character", ALLOWED)
def test_an_allowed_character_is_not_counted(tmp_path, character):
    assert rows_with_refused_characters([written(tmp_path, [f"a{character}b", character, None, ""])]) == 0


@pytest.mark.spec("SND-12")
@pytest.mark.parametrize("character", REFUSED)
def test_a_refused_character_is_counted_once_a_row(tmp_path, character):
    bodies = ["fine\n", character, f"a{character}b{character}", None, "\ufffd"]
    assert rows_with_refused_characters([written(tmp_path, bodies)]) == 2


@pytest.mark.spec("SND-12")
def test_every_row_group_of_every_file_is_looked_at(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = written(tmp_path / "one", ["a", "b", "c\x01", "d"], row_group_size=1)
    two = written(tmp_path / "two", ["\x02"] * 3, row_group_size=2)
    assert rows_with_refused_characters([one, two]) == 4
    assert rows_with_refused_characters([]) == 0
