"""Problems of a root or a queue, each with its remedies."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence

import attrs

from lakequeue.model.secrets import command_prefix


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
