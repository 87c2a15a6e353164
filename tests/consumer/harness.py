"""A consumer under a manual clock: its queue records every call, with the second at which it was made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple
from urllib.request import urlopen

import attrs

from lakequeue import BatchResult, Consumer, Context, DeadLetterReason, LakeQueue, Message, Queue, SendEntry
from lakequeue.entry_verbs import Exchanged, Request, exchange, give_back, receive_for_hands
from lakequeue.errors import QueueClientError, QueueServiceError
from lakequeue.model.clock import Duration
from lakequeue.model.waiting_work import Waits
from lakequeue.testing import ManualClock

LONG_ENOUGH = 60
"""Real seconds after which a consumer that does not end is reported."""


class Call(NamedTuple):
    """One call on the queue: seconds since the start, verb, and bodies with what was asked for them."""

    at: float
    verb: str
    asked: Any


class Recorder(Queue):
    """A queue that takes down who extended, handed back, deleted and received what, and can be made to fail."""

    @classmethod
    def of(cls, queue: Queue) -> Recorder:
        recorder = cls(queue._runtime)
        recorder.began = queue.clock.now()
        recorder.calls = []
        recorder.bodies = {}
        recorder.before = lambda verb, bodies: None
        return recorder

    began: datetime
    calls: list[Call]
    bodies: dict[str, str]
    before: Callable[[str, list[str]], None]
    """Called with the verb and the bodies before each call; what it raises the call raises."""

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return (self.clock.now() - self.began).total_seconds()

    def receive_for_hands(self, request: Request, wake: threading.Event) -> Waits[list[Message]]:
        asked = ("max_messages", "visibility_timeout", "wait_time")
        self._note("receive", {name: getattr(request, name) for name in asked}, [])
        messages = yield from receive_for_hands(self, request, wake)
        self.bodies |= {message.receipt_handle: message.body for message in messages}
        return messages

    def change_visibility_batch(self, changes: Sequence[tuple[str, Duration]]) -> BatchResult:
        asked = [(self.bodies[handle], timeout) for handle, timeout in changes]
        self._note("change", asked, [body for body, _ in asked])
        return super().change_visibility_batch(changes)

    def exchange(
        self,
        wanted: Sequence[tuple[str, Duration | None]],
        request: Request | None,
        failures: Mapping[str, DeadLetterReason],
    ) -> Exchanged:
        """Takes down a round as the calls that it stands for."""
        try:
            for handle, again_in in wanted:
                body = self.bodies[handle]
                if again_in is None:
                    self._note("delete", body, [body])
                else:
                    self._note("change", [(body, again_in)], [body])
            if request is not None:
                options = {name: getattr(request, name) for name in ("max_messages", "visibility_timeout")}
                self._note("receive", options | {"wait_time": 0}, [])
        except (QueueServiceError, QueueClientError) as error:
            return Exchanged([error] * len(wanted), (), error if request else None)
        found = exchange(self, wanted, request, failures)
        self.bodies |= {message.receipt_handle: message.body for message in found.messages}
        return found

    def _note(self, verb: str, asked: Any, bodies: list[str]) -> None:
        self.calls.append(Call(self.now, verb, asked))
        self.before(verb, bodies)

    def changes(self, body: str | None = None) -> list[tuple[float, Any]]:
        """(second, new timeout) of each change, of one message or of all."""
        return [
            (call.at, timeout)
            for call in self.calls
            if call.verb == "change"
            for changed, timeout in call.asked
            if body in (None, changed)
        ]

    def deletes(self) -> list[tuple[float, str]]:
        return [(call.at, call.asked) for call in self.calls if call.verb == "delete"]

    def receives(self) -> list[dict[str, Any]]:
        return [call.asked for call in self.calls if call.verb == "receive"]


class Handler:
    """A handler that notes each call, sleeps, and answers; a coroutine function if ``asynchronous``.

    One of batches notes and passes on lists.

    Attributes:
        begun: second and body of each call.
        receives: receive count of each call.
        slept: whether each sleep lasted until its end; not if the receipt was lost.
        most: how many calls there were at a time.
    """

    def __init__(self, harness: Harness, seconds: Any, answer: Any) -> None:
        self.begun: list[tuple[float, Any]] = []
        self.receives: list[Any] = []
        self.slept: list[bool] = []
        self.most = self._running = 0
        self._counting = threading.Lock()
        self._harness, self._seconds, self._answer = harness, seconds, answer

    @property
    def bodies(self) -> list[Any]:
        return [body for _, body in self.begun]

    @property
    def at(self) -> list[float]:
        return [at for at, _ in self.begun]

    def __call__(self, message: Any, context: Any) -> Any:
        if seconds := self._begin(message, context):
            self.slept.append(_first(context).sleep(seconds))
        return self._end(message)

    def _begin(self, message: Any, context: Any) -> float:
        if isinstance(message, list):
            assert [each.message for each in context] == message
            self.begun.append((self._harness.now, [each.body for each in message]))
            self.receives.append([each.receive_count for each in message])
        else:
            assert context.message is message
            self.begun.append((self._harness.now, message.body))
            self.receives.append(message.receive_count)
        with self._counting:
            self._running += 1
            self.most = max(self.most, self._running)
        return self._seconds(message) if callable(self._seconds) else self._seconds

    def _end(self, message: Any) -> Any:
        with self._counting:
            self._running -= 1
        return self._answer(message) if callable(self._answer) else self._answer


class AsyncHandler(Handler):
    async def __call__(self, message: Any, context: Any) -> Any:
        if seconds := self._begin(message, context):
            self.slept.append(await _first(context).sleep_async(seconds))
        return self._end(message)


def _first(context: Any) -> Context:
    return context[0] if isinstance(context, list) else context


def raises(error: BaseException, body: str = "") -> Callable[[Message], None]:
    """An answer of a handler: it raises, for messages with this body if one is given."""

    def answer(message: Message) -> None:
        if body in ("", message.body):
            raise error

    return answer


@attrs.define
class Harness:
    """One queue, its consumer's view of it, and another consumer's."""

    lq: LakeQueue
    clock: ManualClock
    queue: Recorder
    other: Queue
    """For looking on: nothing that it does is recorded."""

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.queue.now

    def send(self, *bodies: str) -> None:
        """Sends messages; on a FIFO queue the letter that a body begins with is its group."""
        fifo = self.queue.fifo
        entries = [
            SendEntry(body, group_id=body[0] if fifo else None, dedup_id=body if fifo else None) for body in bodies
        ]
        assert not self.queue.send_batch(entries).failed

    def with_dead_letters(self, most: int, *others: Queue) -> Queue:
        """Gives the queue, and others, a dead-letter queue, which it returns, for what was received so often."""
        fifo = self.queue.fifo
        dead = self.lq.create_queue("dead.fifo" if fifo else "dead", fifo=fifo)
        for queue in (self.queue, *others):
            queue.set_attributes(dead_letter_queue=dead.name, max_receive_count=most)
        return dead

    def handler(self, seconds: Any = 0, answer: Any = None, asynchronous: bool = False) -> Handler:
        """A handler that takes so many seconds and returns an answer, or functions of the message to them."""
        return (AsyncHandler if asynchronous else Handler)(self, seconds, answer)

    def fails(
        self,
        *errors: Exception,
        verbs: str = "receive change delete",
        body: str = "",
        since: float = 0,
        until: float | None = None,
    ) -> None:
        """Makes calls of the queue raise these errors, one each; with ``until`` all raise the one until then."""
        left = list(errors)

        def fail(verb: str, bodies: list[str]) -> None:
            if verb in verbs and body in ("", *bodies) and since <= self.now and left:
                if until is None:
                    raise left.pop(0)
                if self.now < until:
                    raise left[0]

        self.queue.before = fail

    def consumer(self, handler: Any, **options: Any) -> Consumer:
        return Consumer(self.queue, handler, **options)

    def consume(self, handler: Any, seconds: float, **options: Any) -> Running:
        """Runs a consumer for so long, then ends it as one that waits for nobody."""
        with self.running(self.consumer(handler, **options)) as running:
            self.clock.advance(seconds)
        return running

    @contextmanager
    def running(self, consumer: Consumer, **options: Any) -> Iterator[Running]:
        """Runs a consumer in a thread of its own; stops it at the end."""
        running = Running(self.clock, consumer, options)
        self.clock.advance(0)
        try:
            yield running
        finally:
            if running.thread.is_alive():
                consumer.stop(timeout=0)
                running.join()

    def visible(self) -> list[str]:
        """What another consumer could have now, without touching it."""
        return [message.body for message in self.other.peek(limit=1_000) if message.state == "visible"]


class Running:
    """A consumer that runs in a thread."""

    def __init__(self, clock: ManualClock, consumer: Consumer, options: dict[str, Any]) -> None:
        self.error: BaseException | None = None
        self._clock = clock
        self._consumer = consumer
        self._options = options
        begun = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(begun,), daemon=True)
        self.thread.start()
        begun.wait()  # else time could pass before the thread takes part in it

    def _run(self, begun: threading.Event) -> None:
        try:
            with self._clock.participant():
                begun.set()
                self._consumer.run(**self._options)
        except BaseException as error:
            self.error = error

    def join(self) -> BaseException | None:
        """Waits for its end, without time passing; what `run` raised."""
        self.thread.join(LONG_ENOUGH)
        assert not self.thread.is_alive(), "the consumer goes on"
        return self.error


def commits(harness: Harness) -> int:
    """Commits to all ledgers of the queue so far."""
    return sum(shard.ledger.query(lambda machine: machine.head.epoch) for shard in harness.queue._runtime.shards)


def recorded(queue: Queue, *arguments: Any) -> Exchanged:
    """In the place of `exchange`."""
    return queue.exchange(*arguments) if isinstance(queue, Recorder) else exchange(queue, *arguments)


def given_back(queue: Queue, handles: Sequence[str]) -> None:
    """In the place of `give_back`; noted as the change that it is to others."""
    if isinstance(queue, Recorder):
        bodies = [queue.bodies[handle] for handle in handles]
        queue._note("change", [(body, 0) for body in bodies], bodies)
    give_back(queue, handles)


def received(queue: Queue, request: Request, wake: threading.Event) -> Waits[list[Message]]:
    """In the place of `receive_for_hands`."""
    if isinstance(queue, Recorder):
        return queue.receive_for_hands(request, wake)
    return receive_for_hands(queue, request, wake)


def sleeper(duration: float, result: Any = None) -> Callable[[Message, Context], Any]:
    """A handler that takes so many seconds."""

    def handle(message: Message, context: Context) -> Any:
        context.sleep(duration)
        return result

    return handle


def scrape(port: int) -> dict[str, float]:
    """What the metrics endpoint of a consumer serves."""
    text = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("lakequeue_")]
    return {name.replace('{queue="orders"}', ""): float(value) for name, value in lines}
