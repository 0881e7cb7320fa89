"""Calls after which there is something for the background to do: it does not wait for its next tick."""

from fastapi import BackgroundTasks, Depends, Request


async def _wake(request: Request, tasks: BackgroundTasks) -> None:
    # After the answer, so after the commit. Where another replica polls, it looks with its next tick.
    tasks.add_task(request.app.state.background.wake)


WAKES = [Depends(_wake)]
