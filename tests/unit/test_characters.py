"""Characters that a message cannot carry, counted in texts of Arrow."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakequeue.storage.bulk.arrow_rows import has_refused

ALLOWED = [*"\t\n\r ~\x7f\x9fü", "\ud7ff", "\ue000", "\ufffd", "\U00010000", "\U0010ffff", "😀"]
REFUSED = ["\x00", "\x08", "\x0b", "\x0c", "\x0e", "\x1f", "\ufffe", "\uffff"]


@pytest.mark.spec("SND-12")
@pytest.mark.parametrize("character", ALLOWED)
def test_an_allowed_character_is_not_counted(character):
    assert not pc.any(has_refused(pa.array([f"a{character}b", character, None, ""]))).as_py()


@pytest.mark.spec("SND-12")
@pytest.mark.parametrize("character", REFUSED)
def test_a_refused_character_is_counted_once_a_row(character):
    bodies = pa.array(["fine\n", character, f"a{character}b{character}", None, "\ufffd", "\x01"])
    assert has_refused(bodies).to_pylist() == [False, True, True, None, False, True]
    assert [pc.sum(has_refused(bodies.slice(start, 2))).as_py() for start in (0, 2, 4)] == [1, 1, 1]
