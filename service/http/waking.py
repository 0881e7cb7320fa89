"""Calls after which there is something for the background to do: it does not wait for its next tick."""

from collections.abc import Callable

from fastapi import BackgroundTasks, Depends, Request


async def _wake(request: Request, tasks: BackgroundTasks) -> None:
    # After the answer, so after the commit. Where another replica polls, it looks with its next tick.
    tasks.add_task(_call, request.app.state.background.wake)


async def _call(wake: Callable[[], None]) -> None:
    # It takes no time, and would wait for a thread if this were not async.
    wake()


WAKES = [Depends(_wake)]
