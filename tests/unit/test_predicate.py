"""Conditions in SQL: valid ones, refused ones, and what they can reach."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timezone

import duckdb
import pyarrow as pa
import pytest

from hostile import SLOW, SLOW_BODY
from lakequeue.conditions import sandbox
from lakequeue.conditions.evaluator import FUNCTIONS, OPERATORS, Evaluator
from lakequeue.conditions.predicate import Predicate
from lakequeue.errors import InvalidParameterValue
from lakequeue.model.arguments import Condition
from lakequeue.operations.browse import SCHEMA

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
DEEP_TYPE = "[" * 20_000 + '"INT"' + "]" * 20_000
BRACKETS = "[" * 30_000 + "]" * 30_000


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


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("body = ?", ["' OR true --"]),
        ("body = $1 OR $1 IS NULL", ["' OR true --"]),
        ("lower(body) = lower(?) AND receive_count = ?", ["' or TRUE --", 2]),
        ("sent_at > ? AND sent_at < ?", [NOON, NOON.replace(hour=14)]),
        ("(receive_count = 2) = ? AND age > ? AND coalesce(group_id, ?, 'x') = 'x'", [True, 1.5, None]),
        ("message_attributes[?] = ?", ["customer", "Ada"]),
        ("message_id IN (?, ?)", ["first", "second"]),
    ],
)
def test_values_of_parameters_are_values_and_no_sql(text, values):
    this = {
        "message_id": "second",
        "body": "' OR true --",
        "receive_count": 2,
        "sent_at": NOON.replace(hour=13),
        "age": 60.0,
        "message_attributes": [("customer", "Ada")],
    }
    condition = Predicate(Condition(text, values), SCHEMA)
    assert condition.select(rows({"sent_at": NOON}, this)).tolist() == [1]


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ("ab", "parameter parameters is invalid. Reason: Must be a list of values, one for each ? in where"),
        (7, "parameter parameters is invalid"),
        (
            ["a", object()],
            "parameters[1] is invalid. Reason: Must be a text, a number, a bool, an instant or None",
        ),
        ([b"a"], "parameters[0]"),
        ([datetime(2026, 1, 1)], "parameters[0] is invalid. Reason: Must be an instant with a time zone"),
        (["\ud800"], "parameters[0]"),
    ],
)
def test_a_value_that_no_condition_can_have_is_refused_by_its_place(parameters, reason):
    for where in ("body = ?", None):
        with pytest.raises(InvalidParameterValue) as refused:
            Condition.of(where, parameters)
        assert where is None or reason in refused.value.message
    assert Condition.of(None, []) is None


@pytest.mark.parametrize(("values", "reason"), [([], "not 1 for 0"), (["a", "b"], "not 1 for 2")])
def test_there_is_a_value_for_each_question_mark(values, reason):
    with pytest.raises(InvalidParameterValue, match=reason):
        Predicate(Condition("body = ?", values), SCHEMA)


def test_null_is_not_true():
    assert chosen("group_id <> 'a'", {"group_id": "a"}, {"group_id": None}, {"group_id": "b"}) == [2]
    assert chosen("NULL::BOOLEAN", {}) == []
    assert chosen("true", {}, {}) == [0, 1]
    assert chosen("true") == []


def test_a_predicate_knows_the_columns_that_it_reads():
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
    "body.error = 'E'": "geometry; a field of JSON is body->>'$.error'",
    "nope = 1": "There is no column nope; did you mean the text 'nope'? There are queue, region, message_id,",
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
    "?": "Must have a ? for each parameter, not 1 for 0",
    "$1": "Must have a ? for each parameter, not 1 for 0",
    "*": "without a star",
    "COLUMNS('b.*') = 'x'": "without a star",
    "EXISTS (SELECT 1)": "without a subquery",
    "body IN (SELECT body FROM messages)": "without a subquery",
    "body IN (FROM read_csv('/etc/passwd'))": "without a subquery",
    "row_number() OVER () > 1": "without a window",
    "list_filter([1], lambda x: x > 1) = [1]": "without a lambda",
    "count(*) > 1": "The function count_star is not one of those",
    "SUM(receive_count) > 1": "The function sum is not one of those",
    "system.main.max(body) = 'x'": "The function max is not one of those",
    "system.pg_catalog.lower(body) = 'x'": "Functions are called as in lower(body), without a dot",
    "body.lower() = 'x'": "Functions are called as in lower(body), without a dot",
    "read_csv('/etc/passwd') IS NULL": "The function read_csv is not one of those",
    "unnest([true, false])": "The function unnest is not one of those",
    "now() > sent_at": "The function now is not one of those",
    "random() < 0.5": "The function random is not one of those",
    "current_setting('threads') = '1'": "The function current_setting is not one of those",
    "pg_sleep(9) IS NULL": "The function pg_sleep is not one of those",
    "nextval('s') = 1": "The function nextval is not one of those",
    "colour(body) = 'red'": "The function colour is not one of those",
    "NOT " * 10_000 + "true": "Parser Error",
    "[" * 20_000 + "]" * 20_000 + " IS NULL": "Parser Error",
    "NOT " * 50_000 + "true": "Must have 65,536 characters at most, not 200,004",
    "body::INT[] IS NULL": "is not one of those that a condition may cast to",
    "body::STRUCT(a INT) IS NULL": "The type STRUCT is not one of those that a condition may cast to",
    "body::ENUM('a') IS NULL": "The type ENUM is not one of those that a condition may cast to",
    "body::GEOMETRY IS NULL": "The type GEOMETRY is not one of those that a condition may cast to",
    # each of these once crashed the process, filled its memory, or went on for a minute
    f"from_json('1', '{DEEP_TYPE}') IS NULL": "The function from_json is not one of those",
    f"json_transform('1', '{DEEP_TYPE}') IS NULL": "The function json_transform is not one of those",
    f"json_transform_strict('1', '{DEEP_TYPE}') IS NULL": "The function json_transform_strict is not one",
    f"CAST('{BRACKETS}'::JSON AS VARIANT) IS NULL": "The type VARIANT is not one of those",
    f"TRY_CAST('{BRACKETS}' AS VARIANT) IS NULL": "The type VARIANT is not one of those",
    f"json_structure('{BRACKETS}') IS NULL": "The function json_structure is not one of those",
    "json_contains(body, '1')": "The function json_contains is not one of those",
    "list_aggregate(list_resize([1.5], 30000000, 2.5), 'sum') > 1": "The function list_aggregate is not one",
    "levenshtein(lpad('', 200000, 'a'), lpad('', 200000, 'b')) > 1": "The function levenshtein is not one",
    "length(repeat('a', 2000000000)) > 1": "The function repeat is not one of those",
    "len(range(1000000000)) > 1": "The function range is not one of those",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:40].replace("[", "(") or "empty")
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
    mine = rows({})
    assert len(mine) == 1  # a variable, which DuckDB would take for a table
    with pytest.raises(duckdb.Error):
        Evaluator().connection.execute(statement)


def test_the_functions_that_may_be_called_look_at_one_row_and_answer_the_same_each_time():
    listed = [name for names in FUNCTIONS.values() for name in names]
    assert len(listed) == len({*listed})
    overloads = defaultdict(list)
    for name, kind, stability, types in duckdb.execute(
        "SELECT function_name, function_type, stability, parameter_types FROM duckdb_functions()"
    ).fetchall():
        overloads[name].append(
            (kind, stability, name == "timezone" or "TIME ZONE" in str(types) or "TZ" in str(types))
        )
    macros = {"date_add", "if", "map_contains_value", "nullif", "split_part"}  # of functions that are, too
    for name in {*listed, *OPERATORS} - macros:
        assert overloads[name], name
        for kind, stability, zoned in overloads[name]:
            # newer versions of DuckDB tell what depends on the time zone, which is always UTC here
            stable = ("CONSISTENT", "CONSISTENT_WITHIN_QUERY") if zoned else ("CONSISTENT",)
            assert kind == "scalar" and stability in stable, name
    assert all(kind == "macro" for name in macros for kind, _, _ in overloads[name])


@pytest.mark.parametrize(
    "text",
    [
        *("json_valid(body)", "TRY(json_valid(body))", "TRY_CAST(body AS JSON) IS NOT NULL"),
        *("TRY(json_type(body)) = 'ARRAY'", "TRY(json_array_length(body)) = 1"),
        *("TRY(body->>'$[0][0]') IS NOT NULL", "TRY(json_exists(body, '$[0]'))"),
        "TRY(json_extract_string(body, '$[0]')) IS NOT NULL",
    ],
)
def test_a_message_of_a_million_brackets_is_one_among_others(text):
    half = 500_000
    bodies = ["[" * 2 * half, "[" * half + "]" * half, "[[1]]", "]", '{"a":' * half]
    assert chosen(text, *({"body": body} for body in bodies)) == [1, 2]


def test_conditions_on_json():
    messages = [{"body": '{"customer": {"name": "Ada"}, "total": 12.5}'}, {"body": '{"customer": null}'}]
    for text in (
        "body->>'$.customer.name' = 'Ada'",
        "json_extract_string(body, '$.customer.name') = 'Ada'",
        "json_extract(body, '$.total')::DOUBLE > 12",
        "json_exists(body, '$.total')",
        "json_type(body, '$.customer') = 'OBJECT'",
        "json_value(body, '$.total') IS NOT NULL",
    ):
        assert (text, chosen(text, *messages)) == (text, [0])


def test_what_needs_too_much_memory_is_refused(monkeypatch):
    monkeypatch.setattr(sandbox, "SECONDS", 60.0)  # filling it takes a second, or ten beside other work
    grown = "replace(" * 12 + "body" + ", 'x', 'xxxxxxxxxx')" * 12
    with pytest.raises(InvalidParameterValue, match=r"Reason: .*([Mm]emory|needs more than 768 MiB)"):
        chosen(f"length({grown}) > 5", {"body": "x" * 100})
    assert chosen("true", {}) == [0]


def test_what_is_too_slow_is_ended_and_says_by_how_much(monkeypatch):
    monkeypatch.setattr(sandbox, "SECONDS", 2.0)
    slow = Predicate(f"{SLOW} OR body = 'x'", SCHEMA)
    assert slow.select(rows({}, {}, {})).tolist() == [0, 1, 2]
    with pytest.raises(InvalidParameterValue) as caught:
        slow.select(rows({"body": SLOW_BODY}, {}))
    assert caught.value.message.endswith(
        "It is too slow: evaluating it for 2 messages took more than 2 s, the limit; messages evaluated before: 3."
    )
    assert slow.select(rows({})).tolist() == [0]


def test_what_crashes_is_ended_alone():
    true = Predicate("true", SCHEMA)
    true._text = "json_contains(body, '1')"  # should one get past the checks
    with pytest.raises(
        InvalidParameterValue, match="The process that evaluates it ended by SIG[A-Z]+: it needs more "
    ):
        true.select(rows({"body": "[" * 500_000 + "]" * 500_000}))
    assert chosen("true", {}) == [0]
