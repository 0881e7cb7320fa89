"""What answers look like in /docs: each is made of examples of its fields.

A field whose type says enough (a time, one of a few words, a truth, a number) needs no example. Any other has
one here, by its name, or by message and name where that means different things; a test refuses one without.
"""

from typing import Any

from service.policies.service import BUILT_IN, STANDARD

_TIME = "2026-01-01T02:00:00Z"
_CATALOG = "0c9f6f0e-2f6b-4c39-8a1e-5b0e4d1c7a11"
_TABLE = "3b1f0a52-7d0e-4f7c-9d53-1f2a6c8e9b22"
_JOB = "6c8a2a0e-6f0e-4a7e-9a43-0d7d5a1e1c52"
_WORKER = "9d2c4b7a-1e5f-4a3b-8c6d-7e8f9a0b1c33"
_POLICY = "b7e3d1c4-5a2f-4e6d-9b8c-1a2b3c4d5e44"
_WEBHOOK = "2f1e0d9c-8b7a-4c6d-9e5f-4a3b2c1d0e55"
_SENDER = "8d7c6b5a-4f3e-4d2c-9b1a-0f9e8d7c6b66"
_ERASURE = "5e4d3c2b-1a0f-4e9d-8c7b-6a5f4e3d2c99"
_UUID = "7a6b5c4d-3e2f-4a1b-9c8d-0e1f2a3b4cbb"
_LOCATION = "s3://lake/warehouse/sales/orders"
_BELOW = "3 equality delete files (policy: 10), 120 equality deletes (policy: 1,000,000)."
_GONE = {"gone": 1, "invisible": 0, "held": 0, "unknown": 0}
_STANDARD = BUILT_IN[STANDARD][1]

FIELDS: dict[str, Any] = {
    # of any message
    "TableTimeline.table": "sales.orders",
    "TableTimeline.pending_equality_deletes": [None, 0, 120],
    "TableTimeline.lag_seconds": [None, 0.0, 42.0],
    "allowed_hosts": ["catalog.example"],
    "allowed_locations": ["s3://lake/"],
    "allowed_secrets": ["env:LAKE_"],
    "attempt": 1,
    "base_address": 4_000_000,
    "branch": "main",
    "bytes": 3_000_000,
    "catalog": "lake",
    "catalog_id": _CATALOG,
    "columns": ["id"],
    "coverage": 1.0,
    "created_by": "dashboard",
    "data_files": 120,
    "dead_ratio": 0.1,
    "decisions": {
        "convert": {"action": "wait", "code": "below-triggers", "sentence": _BELOW, "since": _TIME},
    },
    "entries": 1_000_000,
    "equality_delete_bytes": 90_000,
    "equality_delete_files": 3,
    "equality_deletes": 120,
    "equality_field_ids": [1],
    "error": None,
    "format_version": 3,
    "hostname": "worker-0",
    "iceberg_snapshot_id": 4_096_815_371_423,
    "identifier": ["sales", "orders"],
    "index_warehouse": "s3://lake/index",
    "job_id": _JOB,
    "KeyHistory.key": {"order_id": 17},
    "KeyHistory.key_columns": ["order_id"],
    "KeyInSnapshot.not_told": None,
    "KeyInSnapshot.operation": "append",
    "KeyMatches.key": {"order_id": 17},
    "LookupAnswer.key_columns": ["order_id"],
    "Assignment.rows": None,
    "Match.data_file": "s3://lake/sales/orders/data/00000-1-0b5c.parquet",
    "Match.deleted_by": None,
    "Match.live": True,
    "Match.partition": {"order_day": "2026-05-01"},
    "Match.row": {"order_id": 17, "status": "paid"},
    "lag_seconds": 42.0,
    "lease_seconds": 30.0,
    "location": _LOCATION,
    "max_attempts": 5,
    "max_running_jobs": 4,
    "namespace": ["sales"],
    "namespaces": ["sales"],
    "next_cursor": None,
    "own_files": ["/data/icestream.db"],
    "parameters": {},
    "pending_equality_delete_files": 3,
    "pending_equality_deletes": 120,
    "pid": 4711,
    "poll_error": None,
    "policy": "nightly",
    "prefix": "ice_3fQ9",
    "principal": "dashboard",
    "problem": None,
    "priority": 0,
    "progress": None,
    "request_id": "f5b8c7d6-1a2b-4c3d-8e9f-0a1b2c3d4e55",
    "retry_of": None,
    "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    "revoked_at": None,
    "previous_expires_at": None,
    "rotated_at": None,
    "run_at": None,
    "read_overhead_seconds": 0.31,
    "read_saved_seconds": 1.2,
    "read_seconds": 0.89,
    "rows": 1_000_000,
    "seconds": 2.5,
    "seen_equality_field_ids": [[1]],
    "overlapping_locations": [],
    "staging_branch": "ingest",
    "sorted_runs": 3,
    "status_reason": "3 equality delete files pending, as the policy allows.",
    "table_id": _TABLE,
    "table_uuid": "e4d3c2b1-0f9e-4d8c-b7a6-5f4e3d2c1b66",
    "time_zone": "Europe/Berlin",
    "waiting_for": None,
    "what_to_do": None,
    "worker_id": _WORKER,
    "worker_name": "worker-0",
    # of one message
    "ApiKeyView.id": "d1c2b3a4-5e6f-4a7b-8c9d-0e1f2a3b4c77",
    "ApiKeyView.name": "dashboard",
    "ApiKeyView.tables": None,
    "DeliveryView.attempts": 1,
    "DeliveryView.event": {
        "specversion": "1.0",
        "id": "4711",
        "source": "/icestream",
        "type": "icestream.job.failed",
        "subject": f"tables/{_TABLE}",
        "time": _TIME,
        "datacontenttype": "application/json",
        "data": {"event_id": 4711, "kind": "job.failed", "level": "error", "message": "Failed in attempt 5."},
    },
    "DeliveryView.id": 17,
    "DeliveryView.kind": "job.failed",
    "DeliveryView.message_id": "5e4d3c2b-1a0f-4b9e-8d7c-6b5a4f3e2d99",
    "DeliveryView.status": "delivered",
    "DeliveryView.status_code": 204,
    "DeliveryView.webhook_id": _WEBHOOK,
    "Assignment.orphan_files": [],
    "Assignment.orphans_older_than": None,
    "AssignedCatalog.name": "lake",
    "AssignedCatalog.properties": {"uri": "https://catalog.example", "token": "env:CATALOG_TOKEN"},
    "AssignedCatalog.type": "rest",
    "AssignedIndex.warehouse": "s3://lake/index",
    "AssignedJob.id": _JOB,
    "AssignedJob.kind": "convert",
    "AssignedTable.id": _TABLE,
    "AssignedTable.key_sets": [],
    "Assignment.ended_attempts": [],
    "Assignment.traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "Assignment.previous_attempts": [],
    "AttemptView.status": "succeeded",
    "AuditEntryView.action": "table.pause",
    "AuditEntryView.fields": {},
    "AuditEntryView.id": 17,
    "AuditEntryView.role": "operator",
    "AuditEntryView.target": "sales.orders",
    "BulkItem.problem": None,
    "BulkResult.done": 1,
    "BulkResult.refused": 0,
    "AttachmentView.table": "lake.sales.orders",
    "Candidate.key_sets": [["id"]],
    "Candidate.name": "sales.orders",
    "Candidate.problem": None,
    "Candidate.summary": "It holds equality deletes: 3 files, the oldest 2 hours old.",
    "Candidate.table_id": None,
    "CandidatePage.looked_at": 1,
    "CandidatePage.tables": 1,
    "CatalogCheck.explanation": "The catalog answers; it has 1 table in 1 namespace.",
    "CatalogCheck.ok": True,
    "CatalogCheck.remedy": None,
    "CatalogCheck.tables": ["sales.orders"],
    "CatalogHealthView.error": None,
    "CatalogHealthView.latency_seconds": 0.04,
    "CatalogHealthView.requests": 4_711,
    "CatalogHealthView.tables": {"healthy": 11, "lagging": 0, "degraded": 0, "blocked": 1, "unknown": 0},
    "CatalogView.id": _CATALOG,
    "CatalogView.name": "lake",
    "CatalogView.properties": {"uri": "https://catalog.example", "token": "env:CATALOG_TOKEN"},
    "CheckStep.detail": "It has 1 namespace.",
    "CheckStep.remedy": None,
    "CreatedApiKey.id": "d1c2b3a4-5e6f-4a7b-8c9d-0e1f2a3b4c77",
    "CreatedApiKey.key": "ice_3fQ9xW2mT7vK1nB8rY5cZ0dL4hJ6gS",
    "CreatedApiKey.name": "dashboard",
    "CreatedApiKey.tables": None,
    "EffectivePolicyView.explanation": [
        "convert.delete_files = 10: from policy 'standard', attached to the system."
    ],
    "EffectivePolicyView.policy": STANDARD,
    "EffectivePolicyView.values": {
        "convert.delete_files": {
            "value": 10,
            "source": {"level": "system", "place": "system", "policy": STANDARD},
        }
    },
    "EffectivePolicyView.effective": _STANDARD.model_dump(mode="json"),
    "Assignment.policy": _STANDARD.model_dump(mode="json"),
    "ErasureView.requested_by": "dashboard",
    "ErasureSummary.requested_by": "dashboard",
    "Receipt.requested_by": "dashboard",
    "Receipt.erasure_id": _ERASURE,
    "Receipt.complete": True,
    "Receipt.icestream_version": "1.0.0",
    "Receipt.note": "ticket 4711",
    "Receipt.key_columns": ["customer_id"],
    "Receipt.files": [],
    "ReceiptTable.table": "sales.orders",
    "ReceiptTable.table_uuid": _UUID,
    "ReceiptTable.status": "succeeded",
    "ReceiptTable.cancelled_because": None,
    "ReceiptKey.hash": "5d5b09f6dcb2d53a5fffc60c4ac0d55fabdf556069d6631545f42aa6e3500f2e",
    "ReceiptKey.held_by": [],
    "Receipt.keys": 1,
    "Receipt.erasure_secret_id": "9c1f0d2be76a4385",
    "ReceiptTable.counts": _GONE,
    "ReceiptTable.report": {
        "keys": 1,
        "rows_deleted": 1,
        "snapshot_id_deleted": 4_096_815_371_423,
        "snapshot_id_rewritten": 4_096_815_371_424,
        "data_files_rewritten": 1,
        "bytes_rewritten": 3_000_000,
        "bytes_written": 2_990_000,
        "snapshots_expired": [4_096_815_371_422],
        "snapshots_expired_count": 1,
        "files_looked_through": 240,
        "bytes_looked_through": 90_000_000,
        "looked_at": _TIME,
        "snapshot_id_looked_at": 4_096_815_371_425,
        "counts": _GONE,
        "held": [],
        "invisible": [],
        "unknown": [],
    },
    "ErasureView.id": _ERASURE,
    "ErasureView.jobs": {"succeeded": 1},
    "ErasureView.key_columns": ["customer_id"],
    "ErasureView.note": "ticket 4711",
    "ErasureView.pattern": None,
    "ErasureView.files": [],
    "ErasureView.status": "succeeded",
    "ErasureSummary.id": _ERASURE,
    "ErasureSummary.jobs": {"succeeded": 1},
    "ErasureSummary.key_columns": ["customer_id"],
    "ErasureSummary.note": "ticket 4711",
    "ErasureSummary.pattern": None,
    "ErasureSummary.files": [],
    "ErasureSummary.status": "succeeded",
    "ErasureTableView.counts": _GONE,
    "ErasureTableView.table": "sales.orders",
    "ErasureTableView.table_uuid": _UUID,
    "ErasureTableView.status": "succeeded",
    "ErasureTableView.waiting_for": None,
    "ErasureTableView.cancelled_because": None,
    "EventView.fields": {"job_kind": "convert", "dry_run": False, "status": "queued", "trigger": "request"},
    "EventView.id": 42,
    "EventView.kind": "job.queued",
    "EventView.message": "Queued: requested by dashboard.",
    "HealthSampleView.unconvertible": 0,
    "HealthView.small_manifests": 12,
    "HealthView.small_data_files": 40,
    "HealthView.deleted_data_files": 2,
    "HealthView.small_delete_files": 0,
    "HealthView.snapshots": 1_440,
    "HealthView.oldest_snapshot_at": "2026-06-03T08:00:00Z",
    "HealthView.expired_elsewhere_at": None,
    "HealthView.kept_snapshots": 0,
    "HealthView.staged_age_seconds": 4.0,
    "HealthView.staged_rows": 1_200,
    "HealthView.staged_snapshots": 3,
    "HealthView.stopped_at": None,
    "HealthView.unconvertible": [],
    "Staging.from": "ingest",
    "HealthView.unindexed_data_files": 0,
    "JobView.id": _JOB,
    "JobView.kind": "convert",
    "JobView.requested_by": "dashboard",
    "JobView.result": {
        "equality_delete_files_removed": 3,
        "equality_deletes_resolved": 120,
        "rows_deleted": 118,
        "bytes_read": 3_000_000,
        "bytes_written": 40_000,
        "commits": 1,
    },
    "JobView.status": "succeeded",
    "JobView.table": "sales.orders",
    "Caveat.title": "2 equality delete files cannot be converted",
    "Caveat.detail": "s3://lake/sales/orders/data/00007-eq.parquet: the key column price is of type double",
    "Caveat.remedy": "Have the writer of the deletes use another key.",
    "Caveat.did_nothing": False,
    "JobView.trigger": "request",
    "KeySetView.generation": 1,
    "KeySetView.lag_seconds": 42.5,
    "KeySetView.pending_equality_delete_files": 3,
    "KeySetView.source": "equality_deletes",
    "ReaderCostView.measured_on": "2026-11-26",
    "ReaderCostView.machine": "2 cores, 24 GiB, local disk. Iceberg 1.12.0, pyspark 4.1.4, duckdb 1.5.5.",
    "Me.kind": "api_key",
    "Me.name": "dashboard",
    "PatternResult.already_enrolled": [],
    "PatternResult.failed": [],
    "PatternResult.matched": ["sales.orders"],
    "PlannedJob.now": _BELOW,
    "PlannedJob.why": "The oldest equality delete is 300 s old (policy: 300 s).",
    "PolicyView.description": "Converts at night only.",
    "PolicyView.id": _POLICY,
    "PolicyView.name": "nightly",
    "PolicyView.settings": {"convert": {"age_seconds": 3600}},
    "StageReport.name": "plan",
    "StandingPatternView.exclude": ["sales.tmp_*"],
    "StandingPatternView.failures": [],
    "StandingPatternView.id": "a9b8c7d6-e5f4-4a3b-9c2d-1e0f9a8b7c88",
    "StandingPatternView.matched": 12,
    "StandingPatternView.enrolled": 12,
    "StandingPatternView.pattern": "sales.*",
    "Overview.version": "1.0.0",
    "Overview.catalogs": {"reachable": 1, "unreachable": 0, "unknown": 0},
    "Overview.tables": {"healthy": 11, "lagging": 0, "degraded": 0, "blocked": 1, "unknown": 0},
    "Concern.title": "sales.orders is blocked",
    "Concern.detail": "2 equality delete files cannot be converted.",
    "Concern.remedy": "Have the writer of the deletes use another key.",
    "Concern.path": f"/tables/{_TABLE}",
    "SystemView.version": "1.0.0",
    "TableView.id": _TABLE,
    "TableView.key_sets": [["id"]],
    "TableView.name": "sales.orders",
    "SenderView.id": _SENDER,
    "SenderView.name": "flink",
    "SenderView.secret": "env:WEBHOOK_FLINK",
    "WebhookView.dead": 0,
    "WebhookView.disabled_because": None,
    "WebhookView.enabled": True,
    "WebhookView.id": _WEBHOOK,
    "WebhookView.kinds": ["job.failed"],
    "WebhookView.name": "on-call",
    "WebhookView.pending": 0,
    "WebhookView.secret": "env:WEBHOOK_ON_CALL",
    "WebhookView.url": "https://hooks.example/icestream",
    "WorkerView.alive": True,
    "WorkerView.id": _WORKER,
    "WorkerView.name": "worker-0",
    "WorkerView.version": "1.0.0",
}
_MEDIA_TYPE = "application/json"


def add_examples(document: dict[str, Any]) -> None:
    """Give every successful JSON answer of an OpenAPI document an example. Raises LookupError for a field
    without one."""
    messages = document["components"]["schemas"]
    for calls in document["paths"].values():
        for call in calls.values():
            for status, answer in call["responses"].items():
                content = answer.get("content", {}).get(_MEDIA_TYPE)
                if status.startswith("2") and content is not None and "example" not in content:
                    content["example"] = _example(content["schema"], "", "", messages)


def _example(schema: dict[str, Any], message: str, field: str, messages: dict[str, Any]) -> Any:
    if (name := f"{message}.{field}") in FIELDS:
        return FIELDS[name]
    match schema:
        case {"$ref": reference}:
            name = reference.rpartition("/")[2]
            return _example(messages[name], name, "", messages)
        case _ if field in FIELDS:
            return FIELDS[field]
        case {"anyOf": [first, *_]}:
            return _example(first, message, field, messages)
        case {"properties": fields}:
            return {name: _example(of_field, message, name, messages) for name, of_field in fields.items()}
        case {"const": value} | {"enum": [value, *_]}:
            return value
        case {"type": "array", "items": items}:
            return [_example(items, message, field, messages)]
        case {"type": "string", "format": "date-time"}:
            return _TIME
        case {"type": "boolean"}:
            return False
        case {"type": "integer" | "number"}:
            return schema.get("minimum", 1)
    raise LookupError(f"{message}.{field} has no example: add one to service/examples.py")
