"""The state machine against the naive model, over random commands, clock jumps and lost commits."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import hypothesis
import pytest
from hypothesis import HealthCheck, given, note
from hypothesis import strategies as st

from .command_sequences import random_commands, random_queue, run_commands, small_steps

EXAMPLES = int(os.environ.get("LAKEQUEUE_MODEL_EXAMPLES", "240"))
SECONDS = float(os.environ.get("LAKEQUEUE_MODEL_SECONDS", "60"))

SEQUENCES = st.binary(min_size=100, max_size=300).map(
    lambda codes: [codes[at : at + 5] for at in range(0, len(codes) - 4, 5)]
)
"""From 20 to 60 steps of five bytes; drawn as one text, as a list of them took a fifth of the time."""


def spec(*ids: str) -> pytest.MarkDecorator:
    return pytest.mark.spec(*" ".join(ids).split())


@pytest.mark.parametrize(
    ("kind", "steps_of_indexes", "examples"),
    [
        pytest.param(
            "standard",
            nullcontext,
            EXAMPLES,
            id="standard",
            marks=spec(
                "STA-1 STA-2 STA-3 STA-4 STA-5 STA-6 STA-7 STA-8 STA-13 STA-14",
                "RCP-6 RCP-7 RCP-8 RCP-10 RCP-11 RCP-12 RCV-15 INF-11 ERR-8",
            ),
        ),
        pytest.param(
            "fifo",
            nullcontext,
            EXAMPLES // 4,
            id="fifo",
            marks=spec(
                "FIF-1 FIF-3 FIF-5 FIF-9 FIF-14 FIF-19 RET-10 DLY-10 INF-4 RCP-7",
                "ATT-1 ATT-3 ATT-4 ATT-5 ATT-6 ATT-8 STA-13",
            ),
        ),
        pytest.param("fair", nullcontext, EXAMPLES // 2, id="fair", marks=spec("FAI-1 FAI-2 FAI-4 INF-11 STA-13")),
        pytest.param(
            "delivery",
            nullcontext,
            EXAMPLES // 2,
            id="delivery",
            marks=spec("TAB-2 TAB-3 TAB-5 TAB-6 TAB-7 TAB-8"),
        ),
        pytest.param("delivery", small_steps, EXAMPLES // 4, id="delivery, indexes built anew at any time"),
        pytest.param("standard", small_steps, EXAMPLES // 4, id="standard, indexes built anew at any time"),
        pytest.param("fifo", small_steps, EXAMPLES // 8, id="fifo, indexes built anew at any time"),
        pytest.param("fair", small_steps, EXAMPLES // 4, id="fair, indexes built anew at any time"),
    ],
)
def test_machine_and_model_agree_on_any_commands(
    kind: str, steps_of_indexes: Callable[[], AbstractContextManager[None]], examples: int
) -> None:
    """The same sequences every time, unless LAKEQUEUE_MODEL_EXAMPLES asks for others."""

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        derandomize="LAKEQUEUE_MODEL_EXAMPLES" not in os.environ,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(SEQUENCES, st.randoms(use_true_random=False))
    def agree(steps: list[bytes], source: random.Random) -> None:
        settings, groups = random_queue(source, kind)
        note(f"{settings}, {groups} groups")
        with steps_of_indexes():
            run_commands(steps, settings, groups, note)

    agree()


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("kind", ["fifo", "standard", "fair", "delivery"])
def test_new_commands_for_a_while(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """New random commands, for LAKEQUEUE_MODEL_SECONDS."""
    start, told = int.from_bytes(os.urandom(6), "big"), 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        arguments = start + told, kind, 40 + told % 60
        steps, call = nullcontext, f"run_commands(*random_commands{arguments})"
        if told % 2:
            steps, call = small_steps, f"with small_steps(): {call}"
        try:
            with steps():
                run_commands(*random_commands(*arguments))
        except Exception as error:
            raise AssertionError(call) from error
        told += 1
    with capsys.disabled():
        print(f"{told} {kind} sequences from seed {start} on")
