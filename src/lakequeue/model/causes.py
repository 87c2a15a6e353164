"""Finds the innermost cause of a failed Spark call."""

from __future__ import annotations

import re

_PYTHON = re.compile(r"Traceback \(most recent call last\):\n|thrown from the Python worker(?:: ?|\. [^\n]*)\n?")
_RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*)|$)", re.MULTILINE | re.DOTALL)
_JAVA = re.compile(r"(?:: )?\(?(?:[a-z]\w*\.)+([A-Z][\w$]*)(?:: |\) |\Z)(.*)", re.DOTALL)
_STACK = re.compile(r"\n\s*(?:at [\w.$]+[(/]|\.\.\. \d+ more|Driver stacktrace:|JVM stacktrace:)")
_PLAN = re.compile(r"\n(?:\n|== |'|\+- |Search path:)")
_CONDITION = re.compile(r"\s*\[([A-Z][\w.]*)\]")
_OUTER = re.compile("FAILED|ABORT|PYTHON_EXCEPTION|INTERNAL_ERROR")


def of_spark(error: BaseException) -> bool:
    """Returns True for errors of PySpark, and of py4j, the connection to the JVM."""
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def cause_of(error: BaseException) -> tuple[str, str]:
    """Returns the class and the text of an error. A Spark error is replaced by its innermost informative cause."""
    try:
        text = str(error)
    except Exception:  # str() of the error fails
        text = ""
    if not of_spark(error):
        return type(error).__name__, text
    given = getattr(error, "getStackTrace", None)  # in Spark Connect; a session with a JVM has `_stackTrace`
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
    conditions = [_CONDITION.match(message) for _, message in causes]
    telling = [
        each for each, found in zip(causes, conditions, strict=True) if found and not _OUTER.search(found[1])
    ]
    kind, message = (telling or causes)[-1]
    return kind, _PLAN.split(message.strip(), maxsplit=1)[0].strip().rstrip(";")


def _java(kind: str, text: str) -> tuple[str, str]:
    if text.startswith("An error occurred while calling"):
        text = text.partition("\n")[2] or text
    message = _message(text)
    named = _JAVA.match(message)
    return (named[1], named[2]) if named else (kind, message)


def _message(text: str) -> str:
    return _STACK.split(text, maxsplit=1)[0]
