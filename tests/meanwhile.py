"""What others do while a call is on its way, at a place that a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def meanwhile(
    owner: Any,
    name: str,
    act: Callable[..., object],
    *,
    when: Callable[..., bool] = lambda *_: True,
    after: bool = False,
) -> Iterator[None]:
    """Acts once, right before or after a function does its work for the first time; the block must call it.

    Args:
        owner: what has the function: a module or a class.
        name: that of the function.
        act: is called with the arguments of the function that have no name.
        when: which of its calls counts as the first.
        after: whether to act after it.
    """
    function, done = getattr(owner, name), list[bool]()

    def called(*given: Any, **more: Any) -> Any:
        now = not done and when(*given)
        if now:
            done.append(True)  # what acts may call it as well
        if now and not after:
            act(*given)
        result = function(*given, **more)
        if now and after:
            act(*given)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, called)
        yield
    assert done, f"{name} was not called"
