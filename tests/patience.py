"""How long a test waits for what must come: a bound on hanging, which no machine is slow enough to reach."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_SECONDS = 240.0
POLL_SECONDS = 0.05
T = TypeVar("T")


def wait_until(condition: Callable[[], T | None], what: str) -> T:
    """Return the condition's first true value."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"Waited {PATIENCE_SECONDS:.0f} s in vain for {what}")
        time.sleep(POLL_SECONDS)
    return value
