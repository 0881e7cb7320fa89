"""What people write against the generated client; test_generated_client.py checks its types and runs it."""

import sys

from icestream_client import AuthenticatedClient
from icestream_client.api.jobs import list_jobs, request_job
from icestream_client.api.policies import (
    create_policy,
    get_policy,
    update_policy,
)
from icestream_client.api.tables import list_tables
from icestream_client.models import (
    ConvertPolicy,
    JobRequest,
    JobRequestKind,
    JobStatus,
    JobView,
    ListTablesSort,
    PageJobView,
    PageTableView,
    PolicyPatch,
    PolicyRequest,
    PolicySettings,
    PolicyView,
    Problem,
)


def main(url: str, key: str) -> None:
    client = AuthenticatedClient(base_url=url, token=key)
    hourly = PolicySettings(convert=ConvertPolicy(age_seconds=3600))
    made = create_policy.sync(client=client, body=PolicyRequest(name="hourly", settings=hourly))
    assert isinstance(made, PolicyView)
    again = create_policy.sync(client=client, body=PolicyRequest(name="hourly", settings=hourly))
    assert isinstance(again, Problem)
    print(again.type_, again.status)
    tag = get_policy.sync_detailed("hourly", client=client).headers["ETag"]
    for _ in range(2):
        patch = PolicyPatch(description="Once an hour.")
        changed = update_policy.sync("hourly", client=client, body=patch, if_match=tag)
        print(changed.description if isinstance(changed, PolicyView) else changed and changed.type_)
    tables = list_tables.sync(client=client, sort=ListTablesSort.VALUE_1, limit=1)
    assert isinstance(tables, PageTableView)
    (table,) = tables.items
    job = request_job.sync(
        table.id, client=client, body=JobRequest(kind=JobRequestKind.CONVERT, dry_run=True)
    )
    assert isinstance(job, JobView)
    listed = list_jobs.sync(client=client, table_id=table.id, status=[JobStatus.QUEUED])
    assert isinstance(listed, PageJobView)
    print(table.name, [one.id == job.id for one in listed.items])


if __name__ == "__main__":
    main(*sys.argv[1:])
