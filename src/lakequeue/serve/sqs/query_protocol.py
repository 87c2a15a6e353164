"""The Query protocol of older SDKs: parameters are form fields such as ``Attribute.1.Name``, responses are XML."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterator
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from botocore.model import ListShape, MapShape, OperationModel, Shape, StructureShape

from lakequeue.errors import SERVICE_ERRORS, QueueDoesNotExist
from lakequeue.serve.errors import ErrorResponse, RequestError, malformed
from lakequeue.serve.sqs.model import VERSION, invalid_action, validated

CONTENT_TYPE = "application/x-www-form-urlencoded"
RESPONSE_TYPE = "text/xml"
NAMESPACE = f"http://queue.amazonaws.com/doc/{VERSION}/"
MAX_FIELDS = 2_000
"""Maximum number of fields in a form. The largest valid batch has about 450 fields."""
MAX_NAME_PARTS = 16
"""Maximum number of parts in the name of a field. The longest known name has six parts."""

_ELEMENTS = {"Actions": "ActionName"}
_SIGNING = "X-Amz-"
_OF_ALL_QUEUES = ("CreateQueue", "ListQueues")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INDEX = re.compile("[0-9]{1,4}")

Tree = dict[str, Any]


def form(content: bytes) -> dict[str, str]:
    """Parses a form. Raises RequestError for other contents, a repeated field, or too many fields."""
    try:
        pairs = parse_qsl(
            content.decode(), keep_blank_values=True, strict_parsing=bool(content), errors="strict",
            max_num_fields=MAX_FIELDS,
        )  # fmt: skip
    except ValueError:
        raise malformed("The request is not a form in UTF-8, or has too many fields.") from None
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise malformed("A parameter is given twice.")
    return fields


def url_form(query: str) -> dict[str, str]:
    """Parses the fields of a GET request. Omits the fields that sign the URL. Raises the errors of ``form``."""
    return {name: value for name, value in form(query.encode()).items() if not name.startswith(_SIGNING)}


def action(fields: dict[str, str], path: str) -> str:
    """Returns the action of a form. Raises RequestError if the action, the version or the path is wrong."""
    version = fields.get("Version", VERSION)
    if version != VERSION:
        raise RequestError("NoSuchVersion", f"The version {version} is not supported; use {VERSION}.")
    if not fields.get("Action"):
        raise RequestError("MissingAction", "The request must contain the parameter Action.")
    if fields["Action"] in _OF_ALL_QUEUES and "/" in path.strip("/"):
        raise invalid_action(fields["Action"])
    return fields["Action"]


def parameters(operation: OperationModel, fields: dict[str, str], path: str) -> dict[str, Any]:
    """Parses an action's parameters. The path may replace QueueUrl. Raises RequestError or MissingParameter."""
    tree: Tree = {}
    for name, value in fields.items():
        _put(tree, name, value)
    shape = operation.input_shape
    if "QueueUrl" in shape.members and "QueueUrl" not in tree and path.strip("/"):
        tree["QueueUrl"] = path
    part = _structure(shape, tree)
    for name in shape.required_members:
        if isinstance(shape.members[name], ListShape):  # an empty list has no fields
            part.setdefault(name, [])
    found: dict[str, Any] = validated(shape, part, "")
    return found


def response(operation: OperationModel, result: dict[str, Any], request_id: str) -> bytes:
    shape, tag = operation.output_shape, f"{operation.name}Result"
    members = "" if shape is None else _members(shape, result)
    content = "" if shape is None else f"<{tag}>{members}</{tag}>" if members else f"<{tag}/>"
    return _document(
        f"{operation.name}Response", f"{content}<ResponseMetadata>{_request_id(request_id)}</ResponseMetadata>"
    )


def error(response: ErrorResponse) -> tuple[dict[str, str], bytes]:
    return {}, _document(
        "ErrorResponse",
        f"<Error><Type>{error_type(response)}</Type><Code>{_text(response.code)}</Code>"
        f"<Message>{_text(error_message(response))}</Message><Detail/></Error>{_request_id(response.request_id)}",
    )


def error_type(response: ErrorResponse) -> str:
    return "Sender" if response.sender else "Receiver"


def error_message(response: ErrorResponse) -> str:
    """Returns the message of an error in the words that older SDKs expect."""
    if response.message == QueueDoesNotExist.default_message:
        return "The specified queue does not exist for this wsdl version."
    return response.message


def legacy_code(value: Tree) -> Tree:
    """Returns a failed entry of a batch with the error code of the Query protocol instead of the code of JSON."""
    return value | {"Code": SERVICE_ERRORS[value["Code"]].legacy_code}


def _put(tree: Tree, name: str, value: str) -> None:
    *branches, leaf = name.split(".", MAX_NAME_PARTS)
    if len(branches) == MAX_NAME_PARTS:
        raise malformed("The name of a parameter has too many parts.")
    for branch in branches:
        tree = tree.setdefault(branch, {})
        if not isinstance(tree, dict):
            raise malformed(f"The parameter {name} contradicts another one.")
    if leaf in tree:
        raise malformed(f"The parameter {name} contradicts another one.")
    tree[leaf] = value


def _value(shape: Shape, part: Any, where: str) -> Any:
    """Converts a part of a form to the values that JSON would have. Does not check the types of the values."""
    match shape:
        case StructureShape():
            return _structure(shape, _tree(part, where))
        case ListShape():
            if isinstance(part, str):  # AttributeName=All, as in the samples of the reference
                return [_value(shape.member, part, where)] if part else []
            single = _members_of(shape.member) if isinstance(shape.member, StructureShape) else frozenset()
            return [_value(shape.member, item, where) for item in _elements(part, single, where)]
        case MapShape():
            single = frozenset({key_name(shape), "Value"})
            return dict(_entry(shape, item, where) for item in _elements(part, single, where))
    if shape.type_name in ("integer", "long") and isinstance(part, str):
        return int(part) if re.fullmatch("-?[0-9]{1,19}", part) else part
    if shape.type_name == "boolean":
        return {"true": True, "false": False}.get(part, part)
    return part


def _members_of(shape: StructureShape) -> dict[str, str]:
    """Maps the names that members have in a form to their names in the service model."""
    # some SDKs use the plural: Tags.1.Key (older ones for Java), AttributeNames= (an empty list)
    names = {name[0].upper() + name[1:]: name for name in shape.members}
    return names | {_element(name, member): name for name, member in shape.members.items()}


def _structure(shape: StructureShape, part: Tree) -> dict[str, Any]:
    names = _members_of(shape)
    found: dict[str, Any] = {}
    for key in [key for key in part if key in names]:  # as in SQS, unknown fields are ignored
        name = names[key]
        if name in found:
            raise malformed(f"The parameter {key} contradicts another one.")
        found[name] = _value(shape.members[name], part[key], name)
    return found


def _entry(shape: MapShape, part: Any, where: str) -> tuple[str, Any]:
    entry = _tree(part, where)
    key = key_name(shape)
    if entry.keys() != {key, "Value"} or not isinstance(entry.get(key), str):
        raise malformed(f"{where} must have {key} and Value.")
    return entry[key], _value(shape.value, entry["Value"], where)


def _elements(part: Any, single: Collection[str], where: str) -> Iterator[Any]:
    """Yields the elements of a list or map in the order of their numbers. The only element of a list may come
    without a number: ``part`` is the element if it has no numbers, but a name that elements may have (``single``).
    """
    entries = _tree(part, where)
    if not any(map(_INDEX.fullmatch, entries)) and any(name in single for name in entries):
        yield entries
        return
    if not all(_INDEX.fullmatch(number) for number in entries):
        raise malformed(f"The elements of {where} must be numbered.")
    yield from (entries[number] for number in sorted(entries, key=int))


def _tree(part: Any, where: str) -> Tree:
    if not isinstance(part, dict):
        raise malformed(f"{where} must have members.")
    return part


def _element(name: str, shape: Shape) -> str:
    if isinstance(shape, ListShape) and isinstance(shape.member, StructureShape):
        element: str = shape.member.name
        return element
    if isinstance(shape, ListShape | MapShape):
        return _ELEMENTS.get(name) or name[0].upper() + name[1:].removesuffix("s")
    return name


def key_name(shape: MapShape) -> str:
    return "Key" if shape.name == "TagMap" else "Name"


def _members(shape: StructureShape, value: dict[str, Any]) -> str:
    return "".join(
        _xml(_element(name, shape.members[name]), shape.members[name], item) for name, item in value.items()
    )


def _xml(name: str, shape: Shape, value: Any) -> str:
    match shape:
        case StructureShape():
            if shape.name == "BatchResultErrorEntry":
                value = legacy_code(value)
            return f"<{name}>{_members(shape, value)}</{name}>"
        case ListShape():
            return "".join(_xml(name, shape.member, item) for item in value)
        case MapShape():
            key = key_name(shape)
            return "".join(
                f"<{name}>{_xml(key, shape.key, k)}{_xml('Value', shape.value, v)}</{name}>"
                for k, v in value.items()
            )
    return f"<{name}>{_text(_scalar(value))}</{name}>"


def _scalar(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case bytes():
            return base64.b64encode(value).decode()
    return str(value)


def _text(value: str) -> str:
    # XML parsers turn a carriage return into a line feed, unless it is a character reference
    return escape(_UNPRINTABLE.sub("\ufffd", value), {"\r": "&#13;"})


def _request_id(request_id: str) -> str:
    return f"<RequestId>{_text(request_id)}</RequestId>"


def _document(name: str, content: str) -> bytes:
    return f'<?xml version="1.0"?><{name} xmlns="{NAMESPACE}">{content}</{name}>'.encode()
