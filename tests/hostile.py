"""Conditions and bodies that do harm, for the tests of those who judge them; and conditions of every kind."""

from __future__ import annotations

from random import Random

import pyarrow as pa
from hypothesis import strategies as st

from lakequeue.conditions.evaluator import FUNCTIONS, OPERATORS, TYPES
from lakequeue.operations.browse import SCHEMA

SLOW = "(" + " OR ".join(f"regexp_matches(body, 'x[xy]{{{500 + n}}}z')" for n in range(50)) + ")"
"""Takes half a minute for `SLOW_BODY`, and a tenth of a second, to understand it, for a short body."""
SLOW_BODY = "".join(Random(0).choices("xy", k=200_000))
GREEDY = "length(" + "replace(" * 12 + "body" + ", 'x', 'xxxxxxxxxx')" * 12 + ") > 5"
"""Needs more memory than there is."""
DEEP_TYPE = "[" * 20_000 + '"INT"' + "]" * 20_000
NESTED = "[" * 500_000 + "]" * 500_000
BODIES = [
    SLOW_BODY,
    NESTED,
    "[" * 1_000_000,
    '{"a":' * 100_000,
    '{"a": [1, {"b": null}]}',
    "",
    "x" * 1_000,
    "1e400",
]
CRASHING = [
    f"from_json('1', '{DEEP_TYPE}') IS NULL",
    f"json_transform('1', '{DEEP_TYPE}') IS NULL",
    "body::JSON::VARIANT IS NULL",
    "json_contains(body, '1')",
    "json_structure(body) IS NULL",
]
WASTEFUL = [
    SLOW,
    GREEDY,
    "list_aggregate(list_resize([1.5], 30000000, 2.5), 'sum') > 1",
    "levenshtein(lpad('', 200000, 'a'), lpad('', 200000, 'b')) > 1",
    "(" * 10_000 + "true" + ")" * 10_000,
    " OR ".join(f"contains(body, '{n}')" for n in range(3_000)),
    "body IN (" + ", ".join(f"'{n}'" for n in range(8_000)) + ")",
]

_texts = st.text(max_size=12) | st.sampled_from(
    ["x", "%x%", "(x|y)+z", "$.a[0].b", "$..*", "%Y-%m-%d", "\0", "1", "🙂" * 9]
)
_literals = st.one_of(
    _texts.map(lambda text: "'" + text.replace("'", "''") + "'"),
    st.integers(-(10**20), 10**20).map(str),
    st.floats(allow_nan=False).map(repr),
    st.sampled_from(["NULL", "true", "false", "INTERVAL 1 DAY", "DATE '2026-01-01'", "TIMESTAMPTZ '2026-01-01'"]),
    st.sampled_from(
        ["[1, 2]", "['a']", "[]", "9223372036854775807", "1e308", "'infinity'::TIMESTAMP", "current_date"]
    ),
)
_names = st.sampled_from([name for names in FUNCTIONS.values() for name in names])
_leaves = st.sampled_from([*SCHEMA.names] * 2 + ["message_attributes['a']", "body[1:5]"]) | _literals


def rows(*bodies: str) -> pa.Table:
    return pa.table({"body": pa.array(bodies, pa.string())})


BODY_ONLY = rows().schema


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = [
        *OPERATORS,
        "=",
        "<>",
        "<",
        ">=",
        "AND",
        "OR",
        "LIKE",
        "ILIKE",
        "SIMILAR TO",
        "GLOB",
        "IS DISTINCT FROM",
    ]
    return st.one_of(
        st.tuples(_names, st.lists(inner, min_size=1, max_size=4)).map(
            lambda call: f"{call[0]}({', '.join(call[1])})"
        ),
        st.tuples(inner, st.sampled_from(operators), inner).map(lambda parts: f"({' '.join(parts)})"),
        st.tuples(inner, st.sampled_from(TYPES)).map(lambda cast: f"TRY_CAST({cast[0]} AS {cast[1]})"),
        st.tuples(inner, inner, inner).map(lambda parts: "(CASE WHEN {} THEN {} ELSE {} END)".format(*parts)),
        inner.map(lambda text: f"TRY({text})"),
        inner.map(lambda text: f"(NOT {text})"),
        st.tuples(inner, inner).map(lambda parts: f"({parts[0]} IN ({parts[1]}, NULL))"),
        # many of one kind, next to or inside of each other
        st.tuples(inner, st.integers(1, 300)).map(lambda many: "(" + " OR ".join([many[0]] * many[1]) + ")"),
        st.tuples(_names, inner, st.integers(1, 60)).map(
            lambda deep: f"{deep[0]}(" * deep[2] + deep[1] + ")" * deep[2]
        ),
        st.tuples(inner, st.integers(1, 12)).map(
            lambda grown: "replace(" * grown[1] + grown[0] + ", 'x', 'xxxxxxxxxx')" * grown[1]
        ),
    )


_expressions = st.recursive(_leaves, _larger, max_leaves=8)
conditions = st.one_of(
    _expressions.map(lambda text: f"({text}) IS NULL"),
    _expressions.map(lambda text: f"TRY_CAST({text} AS BOOLEAN)"),
    _expressions,
    st.sampled_from(CRASHING + WASTEFUL),
    st.text(max_size=40),
    st.tuples(st.sampled_from("([{'\"-"), st.integers(1, 60_000)).map(lambda many: many[0] * many[1]),
)
"""Most of them are conditions, some hostile, some nothing at all."""
