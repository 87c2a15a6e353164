"""The columns that the data source reads. Imports pyspark."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pyarrow as pa

from lakequeue.errors import InvalidOptions
from lakequeue.frame_verbs import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def schema(columns: pa.Schema = COLUMNS) -> StructType:
    """Columns as Spark calls them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(columns)


def check(chosen: StructType) -> None:
    """Checks a schema that the user gave: some of the columns, with their types.

    Raises:
        InvalidOptions: names the columns that are unknown or of another type.
    """
    known = {field.name: field.dataType.simpleString() for field in schema().fields}
    problems = []
    for field in chosen.fields:
        type_ = field.dataType.simpleString()
        if field.name not in known:
            problems.append(f"column {field.name} is not known; there are {', '.join(known)}")
        elif type_ != known[field.name]:
            problems.append(f"column {field.name} is {type_}, it must be {known[field.name]}")
    if problems:
        raise InvalidOptions(problems)


def arrow_schema(chosen: StructType) -> pa.Schema:
    """A schema as Spark wants it in record batches."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(chosen, timezone="UTC")
    return to_arrow_schema(chosen)
