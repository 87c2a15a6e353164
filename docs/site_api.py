"""What griffe cannot read from our source, for the pages of the API: see ``mkdocs.yml``.

- Verbs of ``lakequeue.aio`` are made from those of the synchronous classes; they get their arguments and texts.
- Classes of attrs get the constructor that attrs makes.
- ``0o700`` stays ``0o700``, and a default that is a constant of the package is shown by its value.
- Properties come behind the verbs, though the source defines them before.
"""

from __future__ import annotations

import ast
import copy
from typing import Any

import griffe

AIO = "aio"
AFTER_VERBS = 10_000
"""Lines that a property is moved behind its place in the source."""


class PublicApi(griffe.Extension):
    """Completes the package after it is loaded."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Shows defaults in octal as they are written."""
        for parameter in func.parameters:
            if parameter.name.endswith("mode") and str(parameter.default).isdecimal():
                parameter.default = oct(int(str(parameter.default)))

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Moves properties to the end, and adds the constructor that attrs makes."""
        for member in cls.members.values():
            if member.is_attribute and "property" in member.labels:
                member.lineno = (member.lineno or 0) + AFTER_VERBS
        kinds = [str(decorator.value) for decorator in cls.decorators]
        kind = next(
            (
                each
                for each in kinds
                if each.startswith(("attrs.frozen", "attrs.define"))
            ),
            None,
        )
        if kind is None or "__init__" in cls.members:
            return
        parameters = [
            griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
        ]
        for name, field in cls.members.items():
            if (
                isinstance(field, griffe.Attribute)
                and "instance-attribute" in field.labels
            ):
                parameters.append(_parameter(name, field, "kw_only=True" in kind))
        made = griffe.Function(
            "__init__",
            parameters=griffe.Parameters(*parameters),
            returns="None",
            parent=cls,
        )
        cls.set_member("__init__", made)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Gives the verbs for asyncio the arguments and texts of those that they run; inherited properties go
        last.
        """
        for cls in (
            pkg["queue.Queue"],
            pkg["client.LakeQueue"],
            *pkg[AIO].classes.values(),
        ):
            for name, inherited in list(cls.inherited_members.items()):
                if "property" in inherited.labels:
                    own = copy.copy(inherited.final_target)
                    own.lineno = (own.lineno or 0) + AFTER_VERBS
                    cls.set_member(name, own)
        _show_values(pkg)
        for face in pkg[AIO].classes.values():
            for name, member in list(face.members.items()):
                if not (
                    isinstance(member, griffe.Attribute) and member.value is not None
                ):
                    continue
                call = ast.parse(str(member.value), mode="eval").body
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") in (
                    "_verb",
                    "_answering",
                    "_receiving",
                ):
                    verb = ast.unparse(call.args[0]).split(".")[
                        1:
                    ]  # sync_queue.Queue.send
                    face.set_member(name, _coroutine(member, pkg[".".join(verb)], face))


def _show_values(scope: griffe.Module | griffe.Class) -> None:
    """Replaces defaults of parameters that name a constant by the value of the constant."""
    for member in scope.members.values():
        if isinstance(member, griffe.Function):
            for parameter in member.parameters:
                parameter.default = _value(member.module, parameter.default)
        elif isinstance(member, griffe.Module | griffe.Class):
            _show_values(member)


def _value(module: griffe.Module, default: Any) -> Any:
    name = str(default)
    if name == "ABSENT":  # None is a value of its own
        return "..."
    if not name.isupper() or not name.isidentifier() or name not in module.members:
        return default
    found = module.members[name]
    constant = found.final_target if found.is_alias else found
    value = getattr(constant, "value", None)
    return default if value is None else _value(constant.module, value)


def _parameter(
    name: str, field: griffe.Attribute, keyword_only: bool
) -> griffe.Parameter:
    default = None if field.value is None else str(field.value)
    if default is not None and default.startswith("attrs.field("):
        given = {
            each.arg: ast.unparse(each.value)
            for each in ast.parse(default, mode="eval").body.keywords
        }  # type: ignore[attr-defined]
        default = given.get(
            "default", f"{given['factory']}()" if "factory" in given else None
        )
        keyword_only = keyword_only or "kw_only" in given
    kinds = griffe.ParameterKind
    kind = kinds.keyword_only if keyword_only else kinds.positional_or_keyword
    return griffe.Parameter(
        name, annotation=field.annotation, kind=kind, default=default
    )


def _coroutine(
    member: griffe.Attribute, verb: Any, face: griffe.Class
) -> griffe.Function:
    verb = verb.final_target if verb.is_alias else verb
    made = griffe.Function(
        member.name,
        parameters=verb.parameters,
        returns=verb.returns,
        docstring=copy.copy(verb.docstring),
        parent=face,
        lineno=member.lineno,
        endlineno=member.endlineno,
    )
    made.labels |= {"async"}
    return made
