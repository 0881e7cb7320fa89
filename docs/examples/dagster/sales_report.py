"""An asset that Icestream converts, and one that is made from it.

Needs the client (`icestream`) beside Dagster, and ICESTREAM_URL and ICESTREAM_API_KEY where Dagster runs.
"""

import logging
from typing import Any

import dagster as dg

from icestream import Client, JobFailedError

LONGEST_SECONDS = 24 * 3600


class Icestream(dg.ConfigurableResource):
    url: str
    api_key: str

    def run_job(self, context: dg.AssetExecutionContext, table: str, kind: str = "convert") -> dict[str, Any]:
        """Asks for a job, tells what happens to it, and ends as it does: with its result, or with its reason
        and remedy.

        A retry takes up the job of the try before, unless that has failed or was cancelled.
        """
        tags = context.run.tags
        is_retry = "dagster/retry_number" in tags  # of a whole run; one of the asset is in the same run
        first_run = tags["dagster/root_run_id"] if is_retry else context.run.run_id
        with Client(self.url, self.api_key) as client:
            step = context.op_execution_context.op_handle
            job = client.table(table).request_job(kind, key=f"{first_run}:{step}")
            context.log.info(f"Job {job.id} is asked for")
            try:
                ended = job.wait(LONGEST_SECONDS, on_event=lambda event: tell(context, event))
            except JobFailedError as error:
                raise dg.Failure(
                    str(error), metadata={"job": job.id, "code": error.code, "title": error.title}
                ) from error
            except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError):
                job.cancel()
                raise
        result: dict[str, Any] = ended["result"]
        return result


def tell(context: dg.AssetExecutionContext, event: dict[str, Any]) -> None:
    context.log.log(logging.getLevelNamesMapping()[event["level"].upper()], event["message"])


@dg.asset(retry_policy=dg.RetryPolicy(max_retries=2))
def converted_orders(context: dg.AssetExecutionContext, icestream: Icestream) -> dg.MaterializeResult:
    result = icestream.run_job(context, "sales.orders")
    counts = ("equality_delete_files_removed", "rows_deleted")
    return dg.MaterializeResult(metadata={name: result[name] for name in counts})


@dg.asset(deps=[converted_orders])
def sales_report() -> None: ...


defs = dg.Definitions(
    assets=[converted_orders, sales_report],
    resources={
        "icestream": Icestream(url=dg.EnvVar("ICESTREAM_URL"), api_key=dg.EnvVar("ICESTREAM_API_KEY"))
    },
)
