"""The SQS endpoint as an ASGI application: from bytes to an action and back."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import attrs
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from lakequeue import Message, Queue
from lakequeue.errors import LakeQueueError, QueueClientError, QueueDoesNotExist, QueueServiceError
from lakequeue.model.interrupts import Interrupt
from lakequeue.serve.auth import Access, Request, denied
from lakequeue.serve.conditions import hang_up
from lakequeue.serve.faults import Fault, WireError
from lakequeue.serve.limits import LARGEST_OTHER, Bodies
from lakequeue.serve.sqs import json_protocol, query_protocol
from lakequeue.serve.sqs.actions import Actions, named_queues, needed, queue_name
from lakequeue.serve.sqs.model import operation

LARGE = 64 * 1024
"""Bytes of a body that takes some time to parse."""
SENDING = ("SendMessage", "SendMessageBatch")
"""Actions whose requests may be large."""

_Read = TypeVar("_Read")
_log = logging.getLogger("lakequeue.serve")


@attrs.define
class Exchange:
    """A request and what became of it, for the access log and the metrics."""

    action: str = "-"
    queue: str = "-"
    caller: str = "-"
    code: str = "OK"
    request_id: str = ""


class Endpoint:
    """Answers the requests of SQS clients.

    Attributes:
        bodies: reads the bodies of requests.
    """

    def __init__(self, actions: Actions, access: Access, bodies: Bodies) -> None:
        self._actions = actions
        self._access = access
        self.bodies = bodies
        self._receiving: dict[Interrupt, bool] = {}
        self.stopping = False

    def stop(self) -> None:
        """Ends the waits of long polls, those to come too: they answer what there is."""
        self.stopping = True
        for interrupt in list(self._receiving):
            interrupt.set()

    @property
    def waiting(self) -> int:
        """How many long polls are under way."""
        return sum(self._receiving.values())

    async def __call__(self, http: HttpRequest) -> Response:
        """The answer to a request; `http.state.exchange` says what it was about."""
        exchange = http.state.exchange = Exchange(request_id=str(uuid.uuid4()))
        as_json = speaks_json(http.headers)
        try:
            return await self._answer(http, exchange, as_json)
        except ClientDisconnect:
            exchange.code = "ClientDisconnect"
            return Response(status_code=400)
        except Exception as error:
            fault = Fault.of(error)
            exchange.code, exchange.request_id = fault.code, fault.request_id
            if isinstance(error, QueueClientError):
                _log.error("storage failed in %s", exchange.action, exc_info=True)
            elif not isinstance(error, (QueueServiceError, WireError)):
                _log.error("%s failed", exchange.action, exc_info=True)
            return refusal(fault, as_json)

    async def _answer(self, http: HttpRequest, exchange: Exchange, as_json: bool) -> Response:
        if http.method != "POST":
            raise WireError("MethodNotAllowed", "Requests are sent by POST.", 405)
        headers = _headers(http)
        path = http.scope.get("raw_path", b"/").decode("latin-1")
        request = Request(http.method, path, http.scope["query_string"].decode("latin-1"), headers)
        claim = self._access.claim(request, self._actions.lake.clock.now())
        if as_json:
            named = operation(_target(headers))
        else:
            named = None  # by the body
            _check_form(headers)
        most = None if named is None or named.name in SENDING else LARGEST_OTHER
        async with self.bodies.read(http, most, claim.key) as body:
            caller = await _read(body.content, claim.caller, body.content)
            self.bodies.verified(body)
            exchange.caller = caller.name
            if named is not None:
                model, read = named, partial(json_protocol.parameters, named, body.content)
            else:
                fields = await _read(body.content, query_protocol.form, body.content)
                model = operation(query_protocol.action(fields))
                read = partial(query_protocol.parameters, model, fields, http.scope["path"])
            exchange.action = model.name
            if not caller.may_at_all(model.name):  # and so need not be understood
                raise denied(caller, model.name, None)
            given = await _read(body.content, read)
            exchange.queue = named_queues(given)[0] or "-"
            for action, queue in needed(model.name, given):
                if not caller.may(action, queue):
                    raise denied(caller, action, queue)
            base_url = f"{http.scope['scheme']}://{headers.get('host') or http.url.netloc}"
            if model.name == "ReceiveMessage":
                result = await self._receive(http, given)
            else:
                result = await asyncio.to_thread(self._actions.do, model.name, given, base_url)
        request_headers = {"x-amzn-RequestId": exchange.request_id}
        if as_json:
            content = json_protocol.response(model, result)
            return Response(content, headers=request_headers, media_type=json_protocol.CONTENT_TYPE)
        content = query_protocol.response(model, result, exchange.request_id)
        return Response(content, headers=request_headers, media_type=query_protocol.ANSWER_TYPE)

    async def _receive(self, http: HttpRequest, given: dict[str, Any]) -> dict[str, Any]:
        """Receives, and waits no longer once the client hangs up or the server stops."""
        queue = self._actions.known(given["QueueUrl"])  # most are, and each way to a thread and back costs
        if queue is None:
            queue = await asyncio.to_thread(self._actions.queue, queue_name(given["QueueUrl"]))
        interrupt = Interrupt()
        if self.stopping:
            interrupt.set()
        self._receiving[interrupt] = given.get("WaitTimeSeconds", queue.runtime.attributes.wait_micros) > 0
        hung_up = asyncio.create_task(hang_up(http))
        hung_up.add_done_callback(lambda _: interrupt.set())
        try:
            queue, (messages, result) = await self._received(queue, given, interrupt)
        finally:
            del self._receiving[interrupt]
            gone = hung_up.done() and not hung_up.cancelled()
            hung_up.cancel()
        if gone and messages and not given.get("ReceiveRequestAttemptId"):
            # nobody will get the answer: rather now than after the visibility timeout
            await asyncio.to_thread(_hand_back, self._actions, queue, messages)
            raise ClientDisconnect
        return result

    async def _received(
        self, queue: Queue, given: dict[str, Any], interrupt: Interrupt
    ) -> tuple[Queue, tuple[list[Message], dict[str, Any]]]:
        """What was received, and the queue it came from: the newest of the name."""
        try:
            return queue, await self._actions.receive(queue, given, interrupt)
        except QueueDoesNotExist:
            newest = await asyncio.to_thread(self._actions.reopened, queue)
            return newest, await self._actions.receive(newest, given, interrupt)


async def _read(body: bytes, read: Callable[..., _Read], *given: Any) -> _Read:
    """Has a body read; a large one in a thread, so that it does not hold up other requests."""
    if len(body) < LARGE:
        return read(*given)
    return await asyncio.to_thread(read, *given)


def _hand_back(actions: Actions, queue: Queue, messages: list[Message]) -> None:
    try:
        actions.hand_back(queue, messages)
    except LakeQueueError as error:
        _log.warning("messages of %s stay hidden until their timeout: %a", queue.name, str(error))


def _headers(http: HttpRequest) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name, value in http.headers.items():
        found[name] = f"{found[name]},{value}" if name in found else value
    return found


def _target(headers: Mapping[str, str]) -> str:
    target = headers.get("x-amz-target", "")
    if not target:
        raise WireError("MissingAction", "The request must contain the header X-Amz-Target.")
    if not target.startswith(json_protocol.TARGET):
        raise WireError("UnknownOperationException", f"The target {target} is not one of SQS.")
    return target.removeprefix(json_protocol.TARGET)


def _check_form(headers: Mapping[str, str]) -> None:
    given = headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != query_protocol.CONTENT_TYPE:
        raise WireError(
            "UnsupportedMediaType",
            f"Requests are {json_protocol.CONTENT_TYPE} or {query_protocol.CONTENT_TYPE}.",
            415,
        )


def speaks_json(headers: Mapping[str, str]) -> bool:
    """Whether a request is in AWS JSON, or means to be."""
    return json_protocol.TARGET in headers.get("x-amz-target", "") or "json" in headers.get("content-type", "")


def refusal(fault: Fault, as_json: bool) -> Response:
    """The answer that tells of a refusal, in the protocol of the request."""
    headers = {"x-amzn-RequestId": fault.request_id}
    if not as_json:
        return Response(query_protocol.refusal(fault), fault.status, headers, query_protocol.ANSWER_TYPE)
    more, body = json_protocol.refusal(fault)
    return Response(body, fault.status, headers | more, json_protocol.CONTENT_TYPE)
