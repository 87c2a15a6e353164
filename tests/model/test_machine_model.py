"""The state machine against the naive model, over random commands, clock jumps and lost commits."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext

import hypothesis
import pytest
from hypothesis import HealthCheck, given, note
from hypothesis import strategies as st

from .command_sequences import (
    CAPS,
    DELAYED_CAPS,
    DELAYS,
    GROUP_LIMITS,
    RETENTIONS,
    REWINDS,
    random_commands,
    run_commands,
    small_steps,
)
from .model import Settings

EXAMPLES = int(os.environ.get("LAKEQUEUE_MODEL_EXAMPLES", "240"))
SECONDS = float(os.environ.get("LAKEQUEUE_MODEL_SECONDS", "60"))

SEQUENCES = st.binary(min_size=100, max_size=300).map(
    lambda codes: [codes[at : at + 5] for at in range(0, len(codes) - 4, 5)]
)
"""From 20 to 60 steps of five bytes; drawn as one text, as a list of them took a fifth of the time."""
STANDARD = st.builds(
    Settings,
    strict=st.booleans(),
    cap=st.sampled_from(CAPS),
    delayed_cap=st.sampled_from(DELAYED_CAPS),
    retention=st.sampled_from(RETENTIONS),
    rewind_range=st.sampled_from(REWINDS),
)
FIFO = st.builds(
    Settings,
    fifo=st.just(True),
    strict=st.just(True),
    cap=st.sampled_from(CAPS),
    delayed_cap=st.sampled_from(DELAYED_CAPS),
    delay=st.sampled_from(DELAYS),
    retention=st.sampled_from(RETENTIONS),
    rewind_range=st.sampled_from(REWINDS),
)
TENANTS = st.builds(
    Settings,
    tenants=st.just(True),
    fair=st.sampled_from((True, True, True, False)),
    group_limit=st.sampled_from(GROUP_LIMITS),
    strict=st.booleans(),
    cap=st.sampled_from(CAPS),
    delayed_cap=st.sampled_from(DELAYED_CAPS),
    retention=st.sampled_from(RETENTIONS),
    rewind_range=st.sampled_from(REWINDS),
)
GROUPS = st.integers(1, 5)


def sequences(examples: int) -> hypothesis.settings:
    """The same sequences every time, unless LAKEQUEUE_MODEL_EXAMPLES asks for others."""
    return hypothesis.settings(
        max_examples=examples,
        deadline=None,
        derandomize="LAKEQUEUE_MODEL_EXAMPLES" not in os.environ,
        suppress_health_check=list(HealthCheck),
        database=None,
    )


@pytest.mark.spec(
    *("STA-1", "STA-2", "STA-3", "STA-4", "STA-5", "STA-6", "STA-7", "STA-8", "STA-13", "STA-14"),
    *("RCP-6", "RCP-7", "RCP-8", "RCP-10", "RCP-11", "RCP-12", "RCV-15", "INF-11", "ERR-8"),
)
@sequences(EXAMPLES)
@given(SEQUENCES, STANDARD)
def test_machine_and_model_agree_on_any_commands(steps: list[bytes], settings: Settings) -> None:
    run_commands(steps, settings, tell=note)


@pytest.mark.spec(
    *("FIF-1", "FIF-3", "FIF-5", "FIF-9", "FIF-14", "FIF-19", "RET-10", "DLY-10", "INF-4", "RCP-7"),
    *("ATT-1", "ATT-3", "ATT-4", "ATT-5", "ATT-6", "ATT-8", "STA-13"),
)
@sequences(EXAMPLES // 4)
@given(SEQUENCES, FIFO, GROUPS)
def test_machine_and_model_agree_on_any_fifo_commands(steps: list[bytes], settings: Settings, groups: int) -> None:
    run_commands(steps, settings, groups, note)


@pytest.mark.spec("FAI-1", "FAI-2", "FAI-4", "INF-11", "STA-13")
@sequences(EXAMPLES // 2)
@given(SEQUENCES, TENANTS, GROUPS)
def test_machine_and_model_agree_on_any_commands_with_tenants(
    steps: list[bytes], settings: Settings, groups: int
) -> None:
    run_commands(steps, settings, groups, note)


@pytest.mark.spec("FAI-2", "FAI-4")
@sequences(EXAMPLES // 4)
@given(SEQUENCES, TENANTS, GROUPS)
def test_indexes_of_tenants_built_anew_at_any_time_tell_the_same(
    steps: list[bytes], settings: Settings, groups: int
) -> None:
    with small_steps():
        run_commands(steps, settings, groups, note)


@sequences(EXAMPLES // 4)
@given(SEQUENCES, STANDARD)
def test_indexes_built_anew_at_any_time_tell_the_same(steps: list[bytes], settings: Settings) -> None:
    with small_steps():
        run_commands(steps, settings, tell=note)


@sequences(EXAMPLES // 8)
@given(SEQUENCES, FIFO, GROUPS)
def test_fifo_indexes_built_anew_at_any_time_tell_the_same(
    steps: list[bytes], settings: Settings, groups: int
) -> None:
    with small_steps():
        run_commands(steps, settings, groups, note)


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("kind", ["fifo", "standard", "fair"])
def test_new_commands_for_a_while(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """New random commands, for LAKEQUEUE_MODEL_SECONDS."""
    start, told = int.from_bytes(os.urandom(6), "big"), 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        arguments = start + told, kind == "fifo", 40 + told % 60, kind == "fair"
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
