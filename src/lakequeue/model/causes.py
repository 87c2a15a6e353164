"""Finds why a call of Spark failed in the texts that wrap the cause."""

from __future__ import annotations

import re

_PYTHON = re.compile(r"Traceback \(most recent call last\):\n|thrown from the Python worker(?:: ?|\. [^\n]*)\n?")
"""What a Python stack follows, or the exception alone in a worker that hides stacks (``SPARK_HIDE_TRACEBACK``)."""
_RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*)|$)", re.MULTILINE | re.DOTALL)
"""The last lines of a Python stack: class and message."""
_JAVA = re.compile(r"(?:: )?\(?(?:[a-z]\w*\.)+([A-Z][\w$]*)(?:: |\) |\Z)(.*)", re.DOTALL)
"""How Java and Spark Connect print an exception: package, class and message."""
_STACK = re.compile(r"\n\s*(?:at [\w.$]+[(/]|\.\.\. \d+ more|Driver stacktrace:|JVM stacktrace:)")
_PLAN = re.compile(r"\n(?:\n|== |'|\+- |Search path:)")
"""Begins the query and the plan that follow a message."""
_CONDITION = re.compile(r"\s*\[([A-Z][\w.]*)\]")
_OUTER = re.compile("FAILED|ABORT|PYTHON_EXCEPTION|INTERNAL_ERROR")
"""In the conditions of errors that only wrap another error."""


def of_spark(error: BaseException) -> bool:
    """Whether PySpark or its connection to the JVM raised the error."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def cause_of(error: BaseException) -> tuple[str, str]:
    """Class and text of an error, without stacks. For an error of Spark, class and text of its innermost cause.

    The cause is what a task, a function in Python or Java raised, such as ``ValueError`` or
    ``SparkNumberFormatException``. Causes that say less than the error around them, such as a missing class behind
    ``[DATA_SOURCE_NOT_FOUND]``, are left out.
    """
    try:
        text = str(error)
    except Exception:  # of a class that cannot say it
        text = ""
    if not of_spark(error):
        return type(error).__name__, text
    given = getattr(error, "getStackTrace", None)  # of Spark Connect; `_stackTrace` of a session with a JVM
    stack = (given() if given else getattr(error, "_stackTrace", None)) or ""
    _, found, causes = stack.partition("\nCaused by: ")
    return _innermost(type(error).__name__, text + found + causes)


def _innermost(kind: str, text: str) -> tuple[str, str]:
    *_, python = _PYTHON.split(text)
    if python != text:
        raised = _RAISED.search(python)
        if raised is not None:
            name = raised[1].rpartition(".")[2]
            if raised[1].startswith(("pyspark.", "py4j.")):
                return _innermost(name, raised[2] or "")
            return name, re.sub(r"\s*SQLSTATE: \w{5}\s*\Z", "", _message(raised[2] or "")).strip()
    causes = [_java(kind, part) for part in re.split(r"^Caused by: ", text, flags=re.MULTILINE)]
    conditions = [_CONDITION.match(said) for _, said in causes]
    telling = [
        each for each, found in zip(causes, conditions, strict=True) if found and not _OUTER.search(found[1])
    ]
    kind, said = (telling or causes)[-1]
    return kind, _PLAN.split(said.strip(), maxsplit=1)[0].strip().rstrip(";")


def _java(kind: str, text: str) -> tuple[str, str]:
    if text.startswith("An error occurred while calling"):
        text = text.partition("\n")[2] or text
    said = _message(text)
    named = _JAVA.match(said)
    return (named[1], named[2]) if named else (kind, said)


def _message(text: str) -> str:
    """A text up to its stack."""
    return _STACK.split(text, maxsplit=1)[0]
