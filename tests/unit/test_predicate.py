"""Conditions in SQL: what is one, what is refused, and what it may reach."""

from __future__ import annotations

from datetime import datetime, timezone

import pyarrow as pa
import pytest

from lakequeue.errors import InvalidParameterValue
from lakequeue.looking import SCHEMA
from lakequeue.predicate import Predicate

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


def rows(*messages: dict) -> pa.Table:
    standing = {"message_id": "m", "body": "x", "state": "visible", "receive_count": 0, "sent_at": NOON}
    return pa.Table.from_pylist([standing | message for message in messages], schema=SCHEMA)


def chosen(text: str, *messages: dict) -> list[int]:
    return Predicate(text, SCHEMA).select(rows(*messages)).tolist()


@pytest.mark.parametrize(
    "text",
    [
        "body = 'this'",
        "BODY LIKE 'th%' -- with a remark",
        "state = 'in_flight' AND receive_count BETWEEN 2 AND 3",
        "receive_count + 1 > 2 OR false",
        "sent_at > '2026-01-01 12:00'",
        "sent_at = '2026-01-01T14:00:01+01:00'",
        "sent_at::date = DATE '2026-01-01' AND extract(second FROM sent_at) = 1",
        "age > 59.5",
        "NOT (group_id IS NULL)",
        "group_id IN ('a', 'b')",
        "message_attributes['customer'] = 'Ada'",
        "CASE WHEN group_id IS NULL THEN false ELSE message_attributes['price']::DOUBLE > 9.5 END",
        "regexp_matches(body, '^th.s$')",
        "coalesce(nullif(body, 'x') = 'this', false)",
        "body = 'this') AND (true",
    ],
)
def test_a_condition_chooses_the_rows_for_which_it_is_true(text):
    this = {
        "body": "this",
        "state": "in_flight",
        "receive_count": 2,
        "sent_at": NOON.replace(hour=13, second=1),
        "age": 60.0,
        "group_id": "a",
        "message_attributes": [("customer", "Ada"), ("price", "12.5")],
    }
    assert chosen(text, {}, this, {"message_attributes": [("customer", "Grace")]}, this) == [1, 3]


def test_null_is_not_true():
    assert chosen("group_id <> 'a'", {"group_id": "a"}, {"group_id": None}, {"group_id": "b"}) == [2]
    assert chosen("NULL::BOOLEAN", {}) == []
    assert chosen("true", {}, {}) == [0, 1]
    assert chosen("true") == []


def test_it_knows_which_columns_it_looks_at():
    assert Predicate("\"Body\" = 'x' OR message_attributes[state] IS NULL", SCHEMA).columns == {
        "body",
        "message_attributes",
        "state",
    }


REFUSED = {
    "": "Must be a condition in SQL",
    " \n": "Must be a condition in SQL",
    "body": "Must be BOOLEAN, not VARCHAR",
    "1": "Must be BOOLEAN, not INTEGER",
    "body = ": "Parser Error",
    "nope = 1": "There is no column nope, only message_id, body,",
    "messages.body = 'x'": "There is no column messages",
    "current_timestamp > sent_at": "There is no column current_timestamp",
    "body + 1 = 2": "",
    "1; DROP TABLE messages": "Parser Error",
    "true; DROP TABLE messages": "Parser Error",
    "true) FROM (SELECT 1 AS body) t(messages": "Must be one expression",
    "true) WHERE (true": "Must be one expression",
    "true) GROUP BY (1": "Must be one expression",
    "true), (true": "Must be one expression",
    "true) UNION SELECT (true": "Must be one expression",
    "true AS found": "Parser Error",
    "true ORDER BY 1": "Parser Error",
    "true /* ": "Parser Error",
    "?": "Must be one expression",
    "$1": "Must be one expression",
    "*": "without a star",
    "COLUMNS('b.*') = 'x'": "without a star",
    "EXISTS (SELECT 1)": "without a subquery",
    "body IN (SELECT body FROM messages)": "without a subquery",
    "body IN (FROM read_csv('/etc/passwd'))": "without a subquery",
    "row_number() OVER () > 1": "without a window",
    "list_filter([1], lambda x: x > 1) = [1]": "without a lambda",
    "count(*) > 1": "The function count_star looks at more than a message",
    "SUM(receive_count) > 1": "The function sum looks at more than a message",
    "system.main.max(body) = 'x'": "The function max looks at more than a message",
    "read_csv('/etc/passwd') IS NULL": "The function read_csv looks at more than a message",
    "unnest([true, false])": "The function unnest looks at more than a message",
    "now() > sent_at": "The function now looks at more than a message",
    "random() < 0.5": "The function random looks at more than a message",
    "current_setting('threads') = '1'": "The function current_setting looks at more than a message",
    "pg_sleep(9) IS NULL": "The function pg_sleep looks at more than a message",
    "nextval('s') = 1": "The function nextval looks at more than a message",
    "colour(body) = 'red'": "The function colour is unknown",
    "NOT " * 50_000 + "true": "Parser Error",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:40] or "empty")
def test_anything_else_is_refused_by_the_name_of_the_parameter_in_one_line(text):
    with pytest.raises(InvalidParameterValue) as caught:
        Predicate(text, SCHEMA)
    message = caught.value.message
    assert "for parameter where is invalid. Reason: " in message and REFUSED[text] in message
    assert "\n" not in message and len(message) < 500


def test_what_is_no_text_is_refused():
    with pytest.raises(InvalidParameterValue):
        Predicate(5, SCHEMA)  # type: ignore[arg-type]


def test_a_condition_that_fails_on_a_message_is_refused_then():
    number = Predicate("body::INT > 1", SCHEMA)
    assert number.select(rows({"body": "1"}, {"body": "2"})).tolist() == [1]
    with pytest.raises(InvalidParameterValue, match="parameter where is invalid.*Could not convert string 'two'"):
        number.select(rows({"body": "two"}))
    assert chosen("TRY_CAST(body AS INT) > 1", {"body": "two"}, {"body": "3"}) == [1]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_text('/etc/hostname')",
        "COPY (SELECT 1) TO '/tmp/lakequeue-predicate'",
        "ATTACH '/tmp/lakequeue-predicate'",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT * FROM mine",
    ],
)
def test_even_behind_the_checks_there_is_nothing_to_reach(statement):
    """The second wall: what the database of a condition refuses, should a text ever get past its parsing."""
    import duckdb

    mine = rows({})
    assert len(mine) == 1  # a variable, which DuckDB would take for a table
    connection = Predicate("true", SCHEMA)._connection
    with pytest.raises(duckdb.Error):
        connection.execute(statement)
