"""Has Icestream run a job, such as the conversion of a table, and waits for it without a worker's slot.

For Airflow 3.3 or newer, with the client (`icestream`) installed beside it: lies in its folder of plugins.
The connection `icestream` has the service's address as its host, and an API key as its password.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk import BaseHook, BaseOperator, Connection, Context
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from icestream import Client

POLL_SECONDS = 5.0


class IcestreamJobOperator(BaseOperator):
    """Asks for a job, and ends as it does: with its result, or with its reason and remedy.

    A retry takes up the job of the try before, unless that has failed or was cancelled.
    """

    template_fields = ("table", "kind", "parameters")

    def __init__(
        self,
        *,
        table: str,
        kind: str = "convert",
        parameters: dict[str, Any] | None = None,
        conn_id: str = "icestream",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.table = table
        self.kind = kind
        self.parameters = parameters or {}
        self.conn_id = conn_id

    def execute(self, context: Context) -> None:
        task = context["ti"]
        # Tries have the most tries in common; who clears the task gives it more of them, and means a new job.
        of_run = [task.dag_id, task.run_id, task.task_id, task.map_index, task.max_tries]
        with _connected(BaseHook.get_connection(self.conn_id)) as client:
            job = client.table(self.table).request_job(
                self.kind, parameters=self.parameters, key=":".join(map(str, of_run))
            )
        self.log.info("Job %s is asked for", job.id)
        self.defer(trigger=IcestreamJobTrigger(job.id, self.conn_id), method_name="finish")

    def finish(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        with _connected(BaseHook.get_connection(self.conn_id)) as client:
            result: dict[str, Any] = client.job(event["job_id"]).wait(0)["result"]
        return result


class IcestreamJobTrigger(BaseTrigger):
    """Waits in the triggerer until a job has ended, writes what happens to the task's log, and cancels the
    job when the task is marked as failed or succeeded, or cleared."""

    def __init__(self, job_id: str, conn_id: str) -> None:
        super().__init__()
        self.job_id = job_id
        self.conn_id = conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "icestream_jobs.IcestreamJobTrigger", {"job_id": self.job_id, "conn_id": self.conn_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        with _connected(await BaseHook.aget_connection(self.conn_id)) as client:
            job = client.job(self.job_id)
            while True:
                view = await sync_to_async(job.view)()
                for event in await sync_to_async(job.new_events)():
                    level = logging.getLevelNamesMapping()[event["level"].upper()]
                    self.log.log(level, "%s", event["message"])
                if view["ended_at"] is not None:
                    break
                await asyncio.sleep(POLL_SECONDS)
        yield TriggerEvent({"job_id": self.job_id})

    async def on_kill(self) -> None:
        with _connected(await BaseHook.aget_connection(self.conn_id)) as client:
            await sync_to_async(client.job(self.job_id).cancel)()


def _connected(connection: Connection) -> Client:
    return Client(connection.host, connection.password)
