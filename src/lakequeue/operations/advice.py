"""Problems of a root or a queue, with remedies."""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen
class Remedy:
    """A command that helps.

    Attributes:
        command: can be pasted. Words in capitals, such as ID, are placeholders.
        effect: what the command does. Follows the command in a sentence.
    """

    command: str
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.command} {self.effect}".rstrip()


def cure(hint: str, steps: Sequence[Remedy]) -> str:
    """Returns words and commands that help, as one line."""
    return "; ".join(filter(None, (hint, ", ".join(map(str, steps)))))


@attrs.frozen
class Advice:
    """A problem of a root or a queue, with remedies."""

    text: str
    hint: str = ""
    """What helps, in words. Comes before ``steps``."""
    steps: Sequence[Remedy] = ()
    """Commands that help, in the order of their use."""
    urgent: bool = False
    """True if messages may be lost, or if calls fail."""
    kind: str = ""
    """One of ``concerns.KINDS``; empty for a problem of the root."""

    def __str__(self) -> str:
        return "; ".join(filter(None, (self.text, cure(self.hint, self.steps))))
