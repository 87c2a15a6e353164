"""Reports errors as one line and an exit code."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

from lakequeue.cli.help import CommandGroup
from lakequeue.cli.output import OutputClosed, StderrHandler, print_error
from lakequeue.cli.session import DONE, ENVIRONMENT, INTERRUPTED, REFUSED, USAGE, Session
from lakequeue.errors import InvalidOptions, MissingPackage, QueueClientError, QueueServiceError
from lakequeue.model.attributes import ATTRIBUTE_NAMES
from lakequeue.model.causes import cause_of, of_spark


class Commands(CommandGroup):
    """The group of all commands. Accepts global options after a command, too. Turns errors into exit codes."""

    builders: ClassVar[Mapping[str, Callable[[], Any]]] = {}
    """Functions that import and build each command on first use. Importing all commands takes 0.1 s."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": dict.fromkeys(self.builders)})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.builders and not self.commands[cmd_name]:
            self.commands[cmd_name] = self.builders[cmd_name]()
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._own_first(args))

    def _own_first(self, args: Sequence[str]) -> list[str]:
        """Moves the global options to the front of the arguments."""
        own, taken = _values(self), dict[str, bool]()
        group: Any = self
        first, rest = list[str](), list[str]()
        left = deque(args)
        while left:
            arg = left.popleft()
            name, equals, _ = arg.partition("=")
            if arg == "--":
                rest += [arg, *left]
                break
            mine = name in own and name not in taken
            (first if mine else rest).append(arg)
            if not equals and left and (own if mine else taken).get(name):
                (first if mine else rest).append(left.popleft())
            elif group and not arg.startswith("-"):
                found = group.get_command(None, arg)
                taken = _values(found) if found else {}
                group = found if isinstance(found, TyperGroup) else None
        return first + rest

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        arguments = sys.argv[1:] if args is None else list(args)
        session = Session()
        logging.lastResort = StderrHandler(logging.WARNING)  # for warnings while logging is not configured
        if "--json" in arguments:  # parsing the options may fail before they are set
            session.json = True
        try:
            status = super().main(
                arguments, "lakequeue", complete_var, False, windows_expand_args, obj=session, **extra
            )
            if status == INTERRUPTED:  # typer's exit code for Ctrl-C
                raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            status = report_error(session, error)
        except Exception as error:
            status = report_error(session, error)
        if standalone_mode:
            sys.exit(status or DONE)
        return status


def _values(command: Any) -> dict[str, bool]:
    options = [each for each in command.params if each.param_type_name == "option"]
    return {name: not each.is_flag for each in options for name in (*each.opts, *each.secondary_opts)}


def report_error(session: Session, error: BaseException) -> int:
    """Prints an error. Returns the exit code."""
    usage_text = getattr(error, "format_message", None)  # errors of typer and of `usage`
    if session.verbose and not usage_text and not isinstance(error, KeyboardInterrupt):
        print_error("".join(traceback.format_exception(error)).rstrip())
    match error:
        case KeyboardInterrupt():
            return session.fail(INTERRUPTED, "interrupted", "interrupted")
        case OutputClosed():
            return ENVIRONMENT
        case QueueServiceError():
            details = {
                name: getattr(error, name)
                for name in ("http_status", "sender_fault", "request_id", "cmq_code")
                if getattr(error, name) is not None
            }
            if error.hint is not None:
                details["hint"] = session.with_root(error.hint)
            return session.fail(REFUSED, error.code, session.with_root(str(error)), details)
        case MissingPackage() | OSError():
            return session.fail(ENVIRONMENT, "environment", str(error))
        case MemoryError():
            return session.fail(ENVIRONMENT, "environment", str(error) or "there is not enough memory")
        case QueueClientError():
            unknown = error.outcome_unknown or bool(session.done)  # of the whole command, not of its end
            return session.fail(
                ENVIRONMENT, "storage", session.spelled(error.message), {"outcome_unknown": unknown}
            )
        case InvalidOptions():
            return session.fail(USAGE, "usage", session.spelled(str(error)))
        case typer.Abort():  # the answer was not yes; the line of the prompt may be open
            session.note("")
            return session.fail(USAGE, "not-confirmed", "nothing was done")
    if usage_text:
        return session.fail(USAGE, "usage", _usage_text(error, usage_text()))
    return session.fail(
        ENVIRONMENT, "internal", f"{type(error).__name__}: {error}; run with -v for the stack trace"
    )


_ELSEWHERE = {"-a": "--attribute", "--max": "--limit", "--limit": "--max"}  # options of other commands


def _usage_text(error: BaseException, text: str) -> str:
    text = text.removeprefix("Invalid value: ").rstrip(".")
    if possible := _attribute_meant(error) or _same_option(error) or getattr(error, "possibilities", None):
        text = f"{getattr(error, 'message', text)}; did you mean {' or '.join(sorted(possible))}?"
    elif re.match("-[^-]", getattr(error, "option_name", None) or ""):
        text += "; -- goes before an argument that begins with -"
    context = getattr(error, "ctx", None)
    path = "lakequeue" if context is None else context.command_path
    return f"{text}; see {path} --help"


def _same_option(error: BaseException) -> list[str]:
    name = _ELSEWHERE.get(getattr(error, "option_name", None) or "")
    context = getattr(error, "ctx", None)
    known = context is not None and any(name in each.opts for each in context.command.params)
    return [name] if known and name else []


def _attribute_meant(error: BaseException) -> list[str]:
    name = (getattr(error, "option_name", None) or "").lstrip("-").replace("-", "_")
    context = getattr(error, "ctx", None)
    takes_any = context is not None and any("-a" in each.opts for each in context.command.params)
    return [f"-a {name}=VALUE"] if takes_any and name in ATTRIBUTE_NAMES else []


def reason_of(error: BaseException) -> str:
    """Describes an error in one line: a Spark error by its innermost cause."""
    kind, text = cause_of(error)
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if not line:
        return kind
    return line if line.startswith("[") or not of_spark(error) else f"{kind}: {line}"
