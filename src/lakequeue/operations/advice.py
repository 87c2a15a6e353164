"""Problems of a root or a queue, each with its remedies."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import attrs

from lakequeue.model.secrets import command_prefix

KINDS = (
    *("expiring", "full", "outage", "stuck", "abandoned", "silent", "undecided", "schedule fails"),
    *("schedule overdue", "unread", "poison", "dead letters", "growing", "paused", "waiting"),
)
"""Kinds of concerns, most urgent first."""
URGENT = ("expiring", "full")
"""Kinds of concerns that soon lead to lost messages or failed calls."""
KILLED = "a consumer was killed, or its timeout passed"
"""Why a message became a dead letter, if no consumer reported an error."""
ERRORS, REDRIVEN = 5, 3
"""Maximum numbers of error classes that are listed, and for which a redrive command is shown."""


@attrs.frozen
class Remedy:
    """A command that helps with a problem.

    Attributes:
        command: the command, ready to paste. Words in capitals, such as ID, are placeholders.
        effect: what the command does. The text continues a sentence that begins with the command.
    """

    command: str
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.command} {self.effect}".rstrip()


def cure(hint: str, steps: Sequence[Remedy]) -> str:
    """Returns the hint, followed by the commands that help, as one line."""
    return "; ".join(filter(None, (hint, ", ".join(map(str, steps)))))


@attrs.frozen
class Advice:
    """A problem of a root or a queue, with its remedies."""

    text: str
    hint: str = ""
    """Help in words, which is shown before the commands in ``steps``."""
    steps: Sequence[Remedy] = ()
    """Commands that help, in the order of their use."""
    urgent: bool = False
    """True if messages may be lost, or if calls fail."""
    kind: str = ""
    """One of ``concerns.KINDS``, or what of the root is concerned, such as ``compaction``. May be empty."""
    notice: bool = False
    """True if the problem may be intended. ``doctor --strict`` does not fail because of a notice."""
    details: Sequence[str] = ()
    """Lines that explain ``text``, such as an example of each error."""
    queue: str | None = None
    """Name of the queue; None for a problem of the root."""

    @property
    def severity(self) -> str:
        return "urgent" if self.urgent else "notice" if self.notice else "warning"

    def __str__(self) -> str:
        return "; ".join(filter(None, (self.text, *self.details, cure(self.hint, self.steps))))


class ErrorCount(NamedTuple):
    """Number of dead letters with an error, and the text of the newest such error."""

    messages: int
    example: str


@attrs.frozen
class Concern:
    """A problem of a queue that an operator should check."""

    queue: str
    kind: str
    """One of ``KINDS``."""
    text: str
    """Sentence that describes the problem and names the queue."""
    hint: str = ""
    steps: Sequence[Remedy] = ()
    brief: str = ""
    """The text in a few words, without the queue's name."""
    since: datetime | None = None
    """Start of the pause, shown after ``brief``. None for other concerns."""
    reason: str = ""
    """Reason and consequence of the pause, shown after ``since``. Empty for other concerns."""
    group: str | None = None
    """Name of the paused message group. None if the concern is about the whole queue."""
    consumer: str | None = None
    """Name of a consumer that holds messages and has no known process. None for other concerns."""
    errors: Mapping[str, int] = attrs.field(factory=dict)
    """Number of dead letters for each error class, the most frequent class first. Empty text: ``KILLED``."""
    examples: Mapping[str, str] = attrs.field(factory=dict)
    """Text of the newest error of each class in ``errors``, as one line of at most ``EXAMPLE`` characters."""
    notice: bool = False
    """True if the concern may be intended. A short pause is an example."""
    number: int = 0
    """How many messages the concern is about. Orders concerns of the same urgency. 0 if not counted."""

    @property
    def urgency(self) -> int:
        """Sort key of the concern. More urgent concerns have smaller keys, and notices the largest."""
        return KINDS.index(self.kind) + len(KINDS) * self.notice

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: most urgent first, then the largest number of messages."""
        return self.urgency, -self.number

    @property
    def advice(self) -> Advice:
        """The concern as advice, whose text also names the most frequent errors of dead letters."""
        named = {error: number for error, number in self.errors.items() if error}
        errors = ", ".join(f"{number:,} {error}" for error, number in [*named.items()][:ERRORS])
        more = f" and {len(named) - ERRORS} more" if len(named) > ERRORS else ""
        text = f"{self.text}{errors and f', failed with {errors}{more}'}"
        if killed := self.errors.get(""):
            text += f", {killed:,} without an error: {KILLED}"
        details = [f"{error}: {self.examples[error]}" for error in [*self.errors][:ERRORS] if self.examples[error]]
        urgent = self.kind in URGENT
        return Advice(text, self.hint, self.steps, urgent, self.kind, self.notice, details, self.queue)

    def with_errors(self, found: Mapping[str, ErrorCount]) -> Concern:
        """Returns a copy with the dead letters' errors, and with redrive commands for the most frequent errors."""
        errors = {error: each.messages for error, each in found.items()}
        named = attrs.evolve(self, errors=errors, examples={error: each.example for error, each in found.items()})
        if len(errors) < 2:
            return named
        peek, redrive = self.steps
        some = [
            Remedy(f"{redrive.command} {_of_error(error)}", f"sends {number:,} of them back")
            for error, number in [*errors.items()][:REDRIVEN]
        ]
        every = Remedy(redrive.command, "sends all back, once the causes are fixed")
        return attrs.evolve(named, steps=(peek, *some, every))

    def while_failing(self, sources: Sequence[str]) -> Concern:
        """Returns a copy with commands that first pause ``sources``, whose messages become dead letters now."""
        if not sources:
            return self
        pauses = [
            Remedy(f"lakequeue pause {shlex.quote(name)}", "if most fail: no more become dead letters")
            for name in sources
        ]
        resumes = [Remedy(f"lakequeue resume {shlex.quote(name)}", "once the cause is fixed") for name in sources]
        peek, *redrives = self.steps
        text = f"{self.text}, and more come while consumers of {', '.join(sources)} run"
        steps = (*pauses, peek, *resumes, *redrives)
        return attrs.evolve(self, text=text, brief=f"{self.brief}, and more come", steps=steps)


def _of_error(error: str) -> str:
    return f"--error {shlex.quote(error)}" if error else '--where "dead_letter_reason IS NULL"'


_COPIES_PREFIX = {
    "s3": "aws s3 cp --recursive",
    "gs": "gcloud storage cp --recursive",
    "az": "azcopy copy --recursive",
    "abfss": "azcopy copy --recursive",
}
"""Commands that copy a prefix of a store, by its scheme."""


def repairing(root: str, region: str, name: str) -> str:
    """Returns the command that repairs a queue, with root and region."""
    return f"{command_prefix(root, region)} repair {shlex.quote(name)}"


def copying(tables: Iterable[str]) -> Remedy | None:
    """Returns the command that copies tables before a repair. Returns None without tables."""
    places = [*tables]
    if not places:
        return None
    scheme, separator, _ = places[0].rpartition("://")
    above = os.path.commonpath([place.removeprefix(scheme + separator) for place in places])
    if not separator:
        return Remedy(f"cp -a {shlex.quote(above)} COPY", "first, to another disk: a repair cannot be undone")
    place = _azure_url(above) if scheme in ("az", "abfss") else f"{scheme}://{above}"
    return Remedy(
        f"{_COPIES_PREFIX[scheme]} {shlex.quote(place)} COPY",
        "first, once producers, consumers, servers and the compactor are stopped",
    )


def _azure_url(place: str) -> str:
    container, _, path = place.partition("/")
    container, _, host = container.partition("@")
    return f"https://{host.replace('.dfs.', '.blob.') or 'ACCOUNT.blob.core.windows.net'}/{container}/{path}"
