"""Converts a table before its report is made."""

import pendulum
from airflow.sdk import dag, task
from icestream_jobs import IcestreamJobOperator


@dag(schedule="@daily", start_date=pendulum.datetime(2024, 1, 1), catchup=False)
def sales_report() -> None:
    converted = IcestreamJobOperator(task_id="convert", table="sales.orders", retries=2)

    @task
    def report(result: dict[str, int]) -> None:
        print(f"{result['equality_delete_files_removed']} equality delete files are gone")

    report(converted.output)


sales_report()
