"""The SQS endpoint, which turns HTTP requests into actions, and results into responses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from botocore.model import OperationModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lakequeue import Message, Queue
from lakequeue.entry_verbs import settings
from lakequeue.errors import LakeQueueError, QueueDoesNotExist
from lakequeue.model.clock import Interrupt
from lakequeue.serve.auth import Authenticator, Caller, RequestHead, access_denied
from lakequeue.serve.cancellation import Interrupts
from lakequeue.serve.connection import HALF_CLOSED, RECEIVES, hold
from lakequeue.serve.errors import ErrorResponse, RequestError, new_id, reported
from lakequeue.serve.instrumentation import ApiCall
from lakequeue.serve.limits import (
    MAX_OTHER_BODY_BYTES,
    MEMORY_FACTOR,
    CountedAnswer,
    CountedAnswers,
    RequestBodies,
)
from lakequeue.serve.sqs import json_protocol, query_json, query_protocol
from lakequeue.serve.sqs.actions import Actions
from lakequeue.serve.sqs.authorization import check_permissions, named_queues
from lakequeue.serve.sqs.messages import CALLER, SENDER, add_trace_header
from lakequeue.serve.sqs.model import operation
from lakequeue.serve.sqs.queue_urls import queue_name

LARGE = 64 * 1024
"""Minimum bytes of a large body or answer. Large bodies are parsed, and large answers are written, in a thread."""
SENDING = ("SendMessage", "SendMessageBatch")
"""Names of the actions that send messages, whose requests may therefore have large bodies."""
READING = (
    *("GetQueueAttributes", "GetQueueUrl", "ListDeadLetterSourceQueues", "ListMessageMoveTasks"),
    *("ListQueues", "ListQueueTags"),
)
"""Names of the actions that an unsigned GET can do, because they change nothing and return no message."""

_HEADERS = "joined headers"
_TRACE_ID = "x-amzn-trace-id"

_Parsed = TypeVar("_Parsed")
_log = logging.getLogger("lakequeue.serve")


class _Format(Protocol):
    RESPONSE_TYPE: str

    def response(self, operation: OperationModel, result: dict[str, Any], request_id: str) -> bytes: ...

    def error(self, response: ErrorResponse) -> tuple[dict[str, str], bytes]: ...


class SqsEndpoint:
    """Answers the requests of SQS clients.

    Attributes:
        answers: limits the memory of received messages.
        receives: interrupts waiting receives. An interrupted receive returns the messages that it already has.
        waiting: number of long polls in progress.
    """

    def __init__(
        self, actions: Actions, authenticator: Authenticator, bodies: RequestBodies, public_url: str | None = None
    ) -> None:
        self._actions = actions
        self._public_url = public_url
        self._authenticator = authenticator
        self.bodies = bodies
        self.answers = CountedAnswers()
        self.receives = Interrupts()
        self.waiting = 0

    async def __call__(self, http: Request) -> Response:
        """Answers a request. Stores the action and its result in ``http.state.call``."""
        call = http.state.call = ApiCall(request_id=new_id())
        try:
            return await self._answer(http, call)
        except ClientDisconnect:
            call.code = "ClientDisconnect"
            return Response(status_code=400)
        except Exception as error:
            return error_response(reported(error, call), joined_headers(http.scope))

    async def _answer(self, http: Request, call: ApiCall) -> Response:
        if http.method not in ("GET", "POST"):
            raise RequestError("MethodNotAllowed", "Requests are sent by POST or GET.", 405)
        headers, by_get = joined_headers(http.scope), http.method == "GET"
        query = http.scope["query_string"].decode("latin-1")
        if by_get:
            form = query_protocol.url_form(query)
            if not form.get("Action"):
                call.code = "UnknownOperationException"
                return Response("<UnknownOperationException/>", 404, media_type=query_protocol.RESPONSE_TYPE)
        head = RequestHead(http.method, http.scope.get("raw_path", b"/").decode("latin-1"), query, headers)
        pending = self._authenticator.check_head(head, self._actions.lake.clock.now())
        named = None if by_get else _named(headers)
        large = not by_get and (named is None or named.name in SENDING)
        max_bytes = None if large else MAX_OTHER_BODY_BYTES
        async with self.bodies.read(http, max_bytes, pending.key) as body:
            caller = await _parse(body.content, pending.verify, body.content)
            self.bodies.verified(body)
            call.caller = caller.name
            hold(http, pending.key)
            if named is not None:
                model, parse = named, partial(json_protocol.parameters, named, body.content)
            else:
                fields = form if by_get else await _parse(body.content, query_protocol.form, body.content)
                model = operation(query_protocol.action(fields, http.scope["path"]))
                parse = partial(query_protocol.parameters, model, fields, http.scope["path"])
            call.action = model.name
            if by_get and pending.key is None and model.name not in READING:  # any web page can cause a GET
                raise RequestError("AccessDeniedException", _no_key(head), 403)
            if not caller.may_on_any_queue(model.name):  # refused without parsing the parameters
                raise access_denied(caller, model.name, "any queue")
            parameters = await _parse(body.content, parse)
            trace = headers.get(_TRACE_ID) if pending.covers(_TRACE_ID) else None
            self._complete(parameters, model.name, caller, trace)
            call.queue = named_queues(parameters)[0] or "-"
            check_permissions(caller, model.name, parameters)
            base_url = self._public_url or f"{http.scope['scheme']}://{headers.get('host') or http.url.netloc}"
            answer = self.answers.of(pending.key)
            try:
                if model.name == "ReceiveMessage":
                    result = await self._receive(http, parameters, answer)
                else:
                    result = await self._actions.answer(model.name, parameters, base_url)
                format = json_protocol if named is not None else _query_format(headers)
                write = partial(format.response, model, result, call.request_id)
                content = write() if answer.counted < LARGE * MEMORY_FACTOR else await asyncio.to_thread(write)
            except BaseException:
                answer.count(0)
                raise
        stored = {"Cache-Control": "no-store"} if by_get else {}
        response_headers = {"x-amzn-RequestId": call.request_id} | stored
        return _Response(answer, content, headers=response_headers, media_type=format.RESPONSE_TYPE)

    def _complete(self, parameters: dict[str, Any], action: str, caller: Caller, trace: str | None) -> None:
        """Adds the trace header and the caller to the parameters, because the body does not contain them."""
        if action == "SendMessage" and trace:
            add_trace_header(parameters, trace)
        if action in SENDING and self._actions.sender is None:
            parameters[SENDER] = caller.name
        if action == "StartMessageMoveTask":
            parameters[CALLER] = caller

    async def _receive(self, http: Request, parameters: dict[str, Any], answer: CountedAnswer) -> dict[str, Any]:
        """Receives messages. Ends early if the client disconnects or the server stops."""
        http.scope["state"][RECEIVES] = True
        if http.scope["state"].get(HALF_CLOSED):
            raise ClientDisconnect
        queue = self._actions.opened(parameters["QueueUrl"])  # usually open already, which saves a thread
        if queue is None:
            queue = await asyncio.to_thread(self._actions.queue, queue_name(parameters["QueueUrl"]))
        polls = parameters.get("WaitTimeSeconds", settings(queue).wait_micros) > 0
        async with self.receives.of(http) as (interrupt, answer.gone):
            self.waiting += polls
            try:
                await self.answers.begin(answer)
                queue, (messages, result) = await self._receive_from_newest(queue, parameters, interrupt, answer)
            finally:
                self.waiting -= polls
            disconnected = answer.gone.done()
        if disconnected and messages and not parameters.get("ReceiveRequestAttemptId"):
            # nobody gets the answer: make the messages visible now, not after the visibility timeout
            await asyncio.to_thread(_release, self._actions, queue, messages)
            raise ClientDisconnect
        return result

    async def _receive_from_newest(
        self, queue: Queue, parameters: dict[str, Any], interrupt: Interrupt, answer: CountedAnswer
    ) -> tuple[Queue, tuple[list[Message], dict[str, Any]]]:
        """Receives from a queue, or from the new queue of its name if it was deleted. Returns queue and result."""
        try:
            return queue, await self._actions.receive(queue, parameters, interrupt, answer)
        except QueueDoesNotExist:
            newest = await asyncio.to_thread(self._actions.reopened, queue)
            return newest, await self._actions.receive(newest, parameters, interrupt, answer)


class _Response(Response):
    """A response to a receive. Its messages count towards the limit of memory until the response is sent."""

    def __init__(self, answer: CountedAnswer, content: bytes, **more: Any) -> None:
        super().__init__(content, **more)
        self._answer = answer
        if answer.counted:
            answer.count(len(content))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._answer.counted:
                self._answer.count(0)


async def _parse(body: bytes, parse: Callable[..., _Parsed], *arguments: Any) -> _Parsed:
    if len(body) < LARGE:
        return parse(*arguments)
    return await asyncio.to_thread(parse, *arguments)


def _release(actions: Actions, queue: Queue, messages: list[Message]) -> None:
    try:
        actions.release(queue, messages)
    except LakeQueueError as error:
        _log.warning("messages of %s stay in flight until their visibility timeout: %a", queue.name, str(error))


def joined_headers(scope: Scope) -> Mapping[str, str]:
    """Returns a request's headers, by name in lower case. Repeated headers are joined by commas."""
    found: dict[str, str] = scope.setdefault("state", {}).setdefault(_HEADERS, {})
    if not found:
        for raw_name, raw_value in scope["headers"]:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            found[name] = f"{found[name]},{value}" if name in found else value
    return found


def _named(headers: Mapping[str, str]) -> OperationModel | None:
    """Returns the action that the headers name. Returns None for a form, whose body names the action."""
    if is_json(headers):
        target = headers.get("x-amz-target", "")
        if not target:
            raise RequestError("MissingAction", "The request must contain the header X-Amz-Target.")
        if not target.startswith(json_protocol.TARGET):
            raise RequestError("UnknownOperationException", f"The target {target} is not one of SQS.")
        return operation(target.removeprefix(json_protocol.TARGET))
    if headers.get("content-type", "").partition(";")[0].strip().lower() != query_protocol.CONTENT_TYPE:
        types = f"{json_protocol.RESPONSE_TYPE} or {query_protocol.CONTENT_TYPE}"
        raise RequestError("UnsupportedMediaType", f"Requests are {types}.", 415)
    return None


def _no_key(head: RequestHead) -> str:
    """Explains why a server without keys refuses a GET whose action is not in ``READING``."""
    if "authorization" in head.headers or "X-Amz-Signature" in head.query:
        return "This server has no keys, so it cannot verify the signature of a request by GET; use POST."
    return "Unsigned requests by GET only read; use POST."


def is_json(headers: Mapping[str, str]) -> bool:
    """Returns True if a request uses AWS JSON, even if its headers are incomplete."""
    return json_protocol.TARGET in headers.get("x-amz-target", "") or "json" in headers.get("content-type", "")


def _query_format(headers: Mapping[str, str]) -> _Format:
    return query_json if "application/json" in headers.get("accept", "") else query_protocol


def error_response(error: ErrorResponse, headers: Mapping[str, str]) -> Response:
    """Returns the HTTP response for an error. The headers of the request decide the protocol of the response."""
    format = json_protocol if is_json(headers) else _query_format(headers)
    more, body = format.error(error)
    more["x-amzn-RequestId"] = error.request_id
    if error.retry_after is not None:
        more["Retry-After"] = str(error.retry_after)
    return Response(body, error.status, more, format.RESPONSE_TYPE)
