"""Functions that the command line names, imported."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from lakequeue.cli import session
from lakequeue.cli.session import usage


def imported(spec: str, given: str) -> Callable[..., Any]:
    """Imports what ``module:name`` says, also from the working directory.

    Args:
        given: begins the errors: the option and its value.

    Raises:
        typer.BadParameter: there is no such module or name, the module fails, or it is not callable.
    """
    session.spares_pandas = False
    module, _, path = spec.partition(":")
    if not module or not path:
        usage(f"{given}: must be MODULE:FUNCTION, such as package.module:handle")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that no file there takes the place of a package
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (Exception, SystemExit) as error:  # whatever a module does when it is imported
        usage(f"{given}: {_reason(error, module)}")
    if not callable(found):
        usage(f"{given}: not a function")
    function: Callable[..., Any] = found
    return function


def _reason(error: BaseException, module: str) -> str:
    if isinstance(error, AttributeError) and error.obj is sys.modules.get(module):
        return str(error)
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({os.path.basename(error.filename or module)}, line {error.lineno})"
    last = traceback.extract_tb(error.__traceback__)[-1]
    if isinstance(error, ImportError) and "importlib" in last.filename:
        return str(error)
    place = f"{os.path.basename(last.filename)}, line {last.lineno}"
    return f"{type(error).__name__}: {error} ({place})"
