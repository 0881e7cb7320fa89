"""How long a test waits for what must come: a bound on hanging, which no machine is slow enough to reach."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_SECONDS = 240.0
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.01, 0.2
T = TypeVar("T")


def wait_until(condition: Callable[[], T | None], what: str) -> T:
    """Return the condition's first true value, looking less and less often: to look costs, too."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = MIN_PAUSE_SECONDS
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"Waited {PATIENCE_SECONDS:.0f} s in vain for {what}")
        time.sleep(pause)
        pause = min(1.5 * pause, MAX_PAUSE_SECONDS)
    return value
