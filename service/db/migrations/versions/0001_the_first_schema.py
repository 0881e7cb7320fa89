"""The first schema."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
AT = sa.DateTime(timezone=True)
TABLES = (
    "address_counters",
    "api_keys",
    "audit_entries",
    "catalogs",
    "catalog_health",
    "idempotent_answers",
    "leases",
    "login_tokens",
    "pending_changes",
    "policies",
    "system_state",
    "webhooks",
    "workers",
    "browser_sessions",
    "enrollment_patterns",
    "notification_senders",
    "tables",
    "webhook_deliveries",
    "health_samples",
    "index_layouts",
    "jobs",
    "policy_attachments",
    "notifications",
    "table_health",
    "last_claims",
    "job_rows",
    "attempts",
    "events",
    "erasures",
    "erasure_tables",
)
"""Each after those that it names."""
APPEND_ONLY = ("events", "audit_entries")
"""Their rows never change: the database refuses it."""

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_tables()
    if op.get_bind().dialect.name == "sqlite":
        for table in APPEND_ONLY:
            op.execute(
                f"CREATE TRIGGER {table}_append_only BEFORE UPDATE ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} are append-only'); END"
            )
        return
    op.execute(
        "CREATE FUNCTION refuse_update() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% are append-only', TG_TABLE_NAME; END $$"
    )
    for table in APPEND_ONLY:
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION refuse_update()"
        )


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)
    if op.get_bind().dialect.name != "sqlite":
        op.execute("DROP FUNCTION refuse_update()")


def _create_tables() -> None:
    op.create_table(
        "address_counters",
        sa.Column("table_uuid", sa.String(), nullable=False),
        sa.Column("next_address", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("table_uuid"),
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("key_hash", sa.String(), nullable=False),
        sa.Column("scopes", JSON, nullable=True),
        sa.Column("tables", JSON, nullable=True),
        sa.Column("prefix", sa.String(), nullable=False),
        sa.Column("created_at", AT, nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("expires_at", AT, nullable=True),
        sa.Column("last_used_at", AT, nullable=True),
        sa.Column("revoked_at", AT, nullable=True),
        sa.Column("rotated_at", AT, nullable=True),
        sa.Column("previous_key_hash", sa.String(), nullable=True),
        sa.Column("previous_expires_at", AT, nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("key_hash"),
    )
    op.create_index("ix_api_keys_previous_key_hash", "api_keys", ["previous_key_hash"], unique=True)
    op.create_table(
        "audit_entries",
        sa.Column("id", BIG_ID, nullable=False),
        sa.Column("at", AT, nullable=False),
        sa.Column("principal", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("request_id", sa.String(), nullable=True),
        sa.Column("fields", JSON, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_entries_action", "audit_entries", ["action"], unique=False)
    op.create_index("ix_audit_entries_at", "audit_entries", ["at"], unique=False)
    op.create_table(
        "catalogs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("properties", JSON, nullable=False),
        sa.Column("index_warehouse", sa.String(), nullable=True),
        sa.Column("max_running_jobs", sa.Integer(), nullable=True),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", AT, nullable=False),
        sa.Column("updated_at", AT, nullable=False),
        sa.Column("deleted_at", AT, nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "uq_catalogs_name",
        "catalogs",
        ["name"],
        unique=True,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_table(
        "catalog_health",
        sa.Column("catalog_id", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("since", AT, nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("failed_at", AT, nullable=True),
        sa.Column("error", JSON, nullable=True),
        sa.Column("answered_at", AT, nullable=True),
        sa.Column("latency_seconds", sa.Float(), nullable=True),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["catalog_id"], ["catalogs.id"]),
        sa.PrimaryKeyConstraint("catalog_id"),
    )
    op.create_table(
        "idempotent_answers",
        sa.Column("principal", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=False),
        sa.Column("content_type", sa.String(), nullable=False),
        sa.Column("headers", JSON, nullable=False),
        sa.Column("body", sa.String(), nullable=False),
        sa.Column("created_at", AT, nullable=False),
        sa.PrimaryKeyConstraint("principal", "key"),
    )
    op.create_index("ix_idempotent_answers_created_at", "idempotent_answers", ["created_at"], unique=False)
    op.create_table(
        "leases",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("expires_at", AT, nullable=False),
        sa.Column("renewals", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "login_tokens",
        sa.Column("token_hash", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("expires_at", AT, nullable=False),
        sa.Column("used_at", AT, nullable=True),
        sa.PrimaryKeyConstraint("token_hash"),
    )
    op.create_table(
        "pending_changes",
        sa.Column("minute", BIG_ID, autoincrement=False, nullable=False),
        sa.Column("part", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("equality_deletes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("minute", "part"),
    )
    op.create_table(
        "policies",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("description", sa.String(), nullable=False),
        sa.Column("built_in", sa.Boolean(), nullable=False),
        sa.Column("settings", JSON, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", AT, nullable=False),
        sa.Column("updated_at", AT, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "system_state",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("kinds", JSON, nullable=False),
        sa.Column("secret", sa.String(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("disabled_because", sa.String(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("created_at", AT, nullable=False),
        sa.Column("updated_at", AT, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("hostname", sa.String(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("problem", sa.String(), nullable=True),
        sa.Column("registered_by", sa.String(), nullable=True),
        sa.Column("registered_at", AT, nullable=False),
        sa.Column("last_seen_at", AT, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "browser_sessions",
        sa.Column("token_hash", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("api_key_id", sa.String(), nullable=True),
        sa.Column("created_at", AT, nullable=False),
        sa.Column("expires_at", AT, nullable=False),
        sa.ForeignKeyConstraint(
            ["api_key_id"],
            ["api_keys.id"],
        ),
        sa.PrimaryKeyConstraint("token_hash"),
    )
    op.create_index("ix_browser_sessions_api_key_id", "browser_sessions", ["api_key_id"], unique=False)
    op.create_table(
        "enrollment_patterns",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("catalog_id", sa.String(), nullable=False),
        sa.Column("pattern", sa.String(), nullable=False),
        sa.Column("exclude", JSON, nullable=False),
        sa.Column("branch", sa.String(), nullable=False),
        sa.Column("publish_from", sa.String(), nullable=True),
        sa.Column("policy_id", sa.String(), nullable=True),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("created_at", AT, nullable=False),
        sa.Column("updated_at", AT, nullable=False),
        sa.Column("evaluated_at", AT, nullable=True),
        sa.Column("matched", sa.Integer(), nullable=False),
        sa.Column("enrolled", sa.Integer(), nullable=False),
        sa.Column("error", JSON, nullable=True),
        sa.Column("failures", JSON, nullable=False),
        sa.ForeignKeyConstraint(
            ["catalog_id"],
            ["catalogs.id"],
        ),
        sa.ForeignKeyConstraint(
            ["policy_id"],
            ["policies.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_enrollment_patterns_catalog_id", "enrollment_patterns", ["catalog_id"], unique=False)
    op.create_index("ix_enrollment_patterns_created_at", "enrollment_patterns", ["created_at"], unique=False)
    op.create_table(
        "tables",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("catalog_id", sa.String(), nullable=False),
        sa.Column("identifier", JSON, nullable=False),
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("branch", sa.String(), nullable=False),
        sa.Column("key_sets", JSON, nullable=False),
        sa.Column("publish_from", sa.String(), nullable=True),
        sa.Column("table_uuid", sa.String(), nullable=False),
        sa.Column("format_version", sa.Integer(), nullable=False),
        sa.Column("location", sa.String(), nullable=False),
        sa.Column("other_locations", JSON, nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", AT, nullable=False),
        sa.Column("updated_at", AT, nullable=False),
        sa.Column("deleted_at", AT, nullable=True),
        sa.ForeignKeyConstraint(
            ["catalog_id"],
            ["catalogs.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_tables_catalog_id", "tables", ["catalog_id"], unique=False)
    op.create_index("ix_tables_table_uuid", "tables", ["table_uuid"], unique=False)
    op.create_index(
        "uq_tables_identifier_branch",
        "tables",
        ["catalog_id", "identifier", "branch"],
        unique=True,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_index(
        "ix_tables_name",
        "tables",
        ["name", "id"],
        unique=False,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", BIG_ID, nullable=False),
        sa.Column("message_id", sa.String(), nullable=False),
        sa.Column("webhook_id", sa.String(), nullable=False),
        sa.Column("table_id", sa.String(), nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("event", JSON, nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_at", AT, nullable=False),
        sa.Column("next_attempt_at", AT, nullable=False),
        sa.Column("ended_at", AT, nullable=True),
        sa.Column("status_code", sa.Integer(), nullable=True),
        sa.Column("error", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(
            ["webhook_id"],
            ["webhooks.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_webhook_deliveries_pending",
        "webhook_deliveries",
        ["webhook_id", "table_id", "id"],
        unique=False,
        sqlite_where=sa.text("status = 'pending'"),
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_index(
        "ix_webhook_deliveries_status_created_at",
        "webhook_deliveries",
        ["status", "created_at"],
        unique=False,
    )
    op.create_index(
        "ix_webhook_deliveries_webhook_id_status_id",
        "webhook_deliveries",
        ["webhook_id", "status", "id"],
        unique=False,
    )
    op.create_table(
        "health_samples",
        sa.Column("id", BIG_ID, nullable=False),
        sa.Column("table_id", sa.String(), nullable=False),
        sa.Column("at", AT, nullable=False),
        sa.Column("resolution", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("iceberg_snapshot_id", sa.BigInteger(), nullable=True),
        sa.Column("pending_equality_delete_files", sa.Integer(), nullable=False),
        sa.Column("pending_equality_deletes", sa.BigInteger(), nullable=False),
        sa.Column("lag_seconds", sa.Float(), nullable=False),
        sa.Column("hour_most_deletes", sa.BigInteger(), nullable=False),
        sa.Column("hour_longest_lag_seconds", sa.Float(), nullable=False),
        sa.Column("day_most_deletes", sa.BigInteger(), nullable=False),
        sa.Column("day_longest_lag_seconds", sa.Float(), nullable=False),
        sa.Column("coverage", sa.Float(), nullable=True),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sorted_runs", sa.Integer(), nullable=False),
        sa.Column("dead_ratio", sa.Float(), nullable=False),
        sa.Column("unconvertible", sa.Integer(), nullable=False),
        sa.Column("staged_rows", sa.BigInteger(), nullable=False),
        sa.Column("staged_age_seconds", sa.Float(), nullable=False),
        sa.Column("key_sets", JSON, nullable=False),
        sa.Column("data_files", sa.Integer(), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("vectors", sa.BigInteger(), nullable=False),
        sa.Column("positions", sa.BigInteger(), nullable=False),
        sa.Column("data_bytes", sa.BigInteger(), nullable=False),
        sa.Column("delete_bytes", sa.BigInteger(), nullable=False),
        sa.Column("snapshots", sa.Integer(), nullable=False),
        sa.Column("small_manifests", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["table_id"],
            ["tables.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_health_samples_at", "health_samples", ["at"], unique=False)
    op.create_index(
        "ix_health_samples_table_id_id",
        "health_samples",
        [
            "table_id",
            "id",
            "at",
            "resolution",
            "hour_most_deletes",
            "hour_longest_lag_seconds",
            "day_most_deletes",
            "day_longest_lag_seconds",
        ],
        unique=False,
    )
    op.create_index(
        "ix_health_samples_most",
        "health_samples",
        ["resolution", "at", "table_id", "hour_most_deletes", "day_most_deletes"],
        unique=False,
        sqlite_where=sa.text("resolution <> 'all'"),
        postgresql_where=sa.text("resolution <> 'all'"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("table_id", sa.String(), nullable=False),
        sa.Column("table_uuid", sa.String(), nullable=False),
        sa.Column("catalog_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("dry_run", sa.Boolean(), nullable=False),
        sa.Column("writes", sa.Boolean(), nullable=False),
        sa.Column("parameters", JSON, nullable=False),
        sa.Column("trigger", sa.String(), nullable=False),
        sa.Column("requested_by", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("created_at", AT, nullable=False),
        sa.Column("available_at", AT, nullable=False),
        sa.Column("held_because", sa.String(), nullable=True),
        sa.Column("run_at", AT, nullable=True),
        sa.Column("table_claimed_at", AT, nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("started_at", AT, nullable=True),
        sa.Column("ended_at", AT, nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("backoff_seconds", sa.Float(), nullable=False),
        sa.Column("max_backoff_seconds", sa.Float(), nullable=False),
        sa.Column("timeout_seconds", sa.Float(), nullable=False),
        sa.Column("lease_expires_at", AT, nullable=True),
        sa.Column("renewals", sa.Integer(), nullable=False),
        sa.Column("cancel_requested_at", AT, nullable=True),
        sa.Column("retry_of", sa.String(), nullable=True),
        sa.Column("traceparent", sa.String(), nullable=True),
        sa.Column("policy_digest", sa.String(), nullable=False),
        sa.Column("seen_snapshot_id", sa.BigInteger(), nullable=True),
        sa.Column("seen_rewritable", JSON, nullable=True),
        sa.Column("progress", JSON, nullable=True),
        sa.Column("result", JSON, nullable=True),
        sa.Column("error", JSON, nullable=True),
        sa.ForeignKeyConstraint(
            ["catalog_id"],
            ["catalogs.id"],
        ),
        sa.ForeignKeyConstraint(
            ["table_id"],
            ["tables.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_jobs_created_at_id_kind", "jobs", ["created_at", "id", "kind"], unique=False)
    op.create_index("ix_jobs_ended_at_kind", "jobs", ["ended_at", "kind"], unique=False)
    op.create_index(
        "ix_jobs_failed",
        "jobs",
        ["status", "ended_at"],
        unique=False,
        sqlite_where=sa.text("status = 'failed'"),
        postgresql_where=sa.text("status = 'failed'"),
    )
    op.create_index(
        "ix_jobs_unsuccessful",
        "jobs",
        ["created_at", "id"],
        unique=False,
        sqlite_where=sa.text("status NOT IN ('queued', 'running', 'succeeded')"),
        postgresql_where=sa.text("status NOT IN ('queued', 'running', 'succeeded')"),
    )
    op.create_index(
        "ix_jobs_status_catalog_id_table_id", "jobs", ["status", "catalog_id", "table_id"], unique=False
    )
    op.create_index("ix_jobs_table_id_created_at", "jobs", ["table_id", "created_at"], unique=False)
    op.create_index(
        "ix_jobs_table_id_ended_at", "jobs", ["table_id", "ended_at", "started_at", "id"], unique=False
    )
    op.create_index(
        "ix_jobs_uncommon",
        "jobs",
        ["kind", "created_at"],
        unique=False,
        sqlite_where=sa.text("kind NOT IN ('convert', 'index')"),
        postgresql_where=sa.text("kind NOT IN ('convert', 'index')"),
    )
    op.create_index(
        "ix_jobs_requested",
        "jobs",
        ["created_at", "id"],
        unique=False,
        sqlite_where=sa.text("\"trigger\" = 'request'"),
        postgresql_where=sa.text("\"trigger\" = 'request'"),
    )
    op.create_index(
        "ix_jobs_turn",
        "jobs",
        ["catalog_id", sa.text("priority DESC"), "table_claimed_at", "available_at", "id"],
        unique=False,
        sqlite_where=sa.text("status = 'queued'"),
        postgresql_where=sa.text("status = 'queued'"),
    )
    never_started = sa.text("status = 'queued' AND attempt = 0 AND kind NOT IN ('upsert', 'delete', 'erase')")
    op.create_index(
        "uq_jobs_queued_kind",
        "jobs",
        ["table_id", "kind", "dry_run"],
        unique=True,
        sqlite_where=never_started,
        postgresql_where=never_started,
    )
    op.create_index(
        "uq_jobs_running_writer",
        "jobs",
        ["table_uuid"],
        unique=True,
        sqlite_where=sa.text("status = 'running' AND writes = 1"),
        postgresql_where=sa.text("status = 'running' AND writes"),
    )
    op.create_table(
        "policy_attachments",
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("level", sa.String(), nullable=False),
        sa.Column("catalog_id", sa.String(), nullable=True),
        sa.Column("namespace", JSON, nullable=True),
        sa.Column("table_id", sa.String(), nullable=True),
        sa.Column("policy_id", sa.String(), nullable=False),
        sa.Column("updated_at", AT, nullable=False),
        sa.ForeignKeyConstraint(
            ["catalog_id"],
            ["catalogs.id"],
        ),
        sa.ForeignKeyConstraint(
            ["policy_id"],
            ["policies.id"],
        ),
        sa.ForeignKeyConstraint(
            ["table_id"],
            ["tables.id"],
        ),
        sa.PrimaryKeyConstraint("target"),
    )
    op.create_index("ix_policy_attachments_catalog_id", "policy_attachments", ["catalog_id"], unique=False)
    op.create_index("ix_policy_attachments_policy_id", "policy_attachments", ["policy_id"], unique=False)
    op.create_index("ix_policy_attachments_table_id", "policy_attachments", ["table_id"], unique=False)
    op.create_table(
        "notification_senders",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("catalog_id", sa.String(), nullable=False),
        sa.Column("secret", sa.String(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("created_at", AT, nullable=False),
        sa.Column("last_heard_at", AT, nullable=True),
        sa.Column("last_refused_at", AT, nullable=True),
        sa.Column("last_refusal", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["catalog_id"], ["catalogs.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )
    op.create_index(
        "ix_notification_senders_catalog_id", "notification_senders", ["catalog_id"], unique=False
    )
    op.create_table(
        "notifications",
        sa.Column("id", BIG_ID, nullable=False),
        sa.Column("table_id", sa.String(), nullable=False),
        sa.Column("at", AT, nullable=False),
        sa.ForeignKeyConstraint(["table_id"], ["tables.id"]),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "index_layouts",
        sa.Column("table_id", sa.String(), nullable=False),
        sa.Column("layouts", JSON, nullable=False),
        sa.ForeignKeyConstraint(["table_id"], ["tables.id"]),
        sa.PrimaryKeyConstraint("table_id"),
    )
    op.create_table(
        "table_health",
        sa.Column("table_id", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("status_reason", sa.String(), nullable=False),
        sa.Column("what_to_do", sa.String(), nullable=True),
        sa.Column("is_removed", sa.Boolean(), nullable=False),
        sa.Column("measured_at", AT, nullable=True),
        sa.Column("iceberg_snapshot_id", sa.BigInteger(), nullable=True),
        sa.Column("pending_equality_delete_files", sa.Integer(), nullable=False),
        sa.Column("pending_equality_deletes", sa.BigInteger(), nullable=False),
        sa.Column("oldest_equality_delete_at", AT, nullable=True),
        sa.Column("maintenance_due_at", AT, nullable=True),
        sa.Column("pending_key_sets", JSON, nullable=False),
        sa.Column("convertible_delete_files", sa.Integer(), nullable=False),
        sa.Column("convertible_deletes", sa.BigInteger(), nullable=False),
        sa.Column("convertible_bytes", sa.BigInteger(), nullable=False),
        sa.Column("oldest_convertible_at", AT, nullable=True),
        sa.Column("small_manifests", sa.Integer(), nullable=False),
        sa.Column("small_data_files", sa.Integer(), nullable=False),
        sa.Column("deleted_data_files", sa.Integer(), nullable=False),
        sa.Column("small_delete_files", sa.Integer(), nullable=False),
        sa.Column("snapshots", sa.Integer(), nullable=False),
        sa.Column("oldest_snapshot_id", sa.BigInteger(), nullable=True),
        sa.Column("oldest_snapshot_at", AT, nullable=True),
        sa.Column("seen_snapshot_id", sa.BigInteger(), nullable=True),
        sa.Column("done_elsewhere", JSON, nullable=False),
        sa.Column("staged_snapshots", sa.Integer(), nullable=False),
        sa.Column("staged_rows", sa.BigInteger(), nullable=False),
        sa.Column("oldest_staged_at", AT, nullable=True),
        sa.Column("first_staged_id", sa.BigInteger(), nullable=True),
        sa.Column("stopped_at", JSON, nullable=True),
        sa.Column("staging_is_cut", sa.Boolean(), nullable=False),
        sa.Column("staging_is_unproven", sa.Boolean(), nullable=False),
        sa.Column("kept_snapshots", sa.Integer(), nullable=False),
        sa.Column("watched_branch", sa.String(), nullable=True),
        sa.Column("reader_shapes", JSON, nullable=False),
        sa.Column("rows_deleted_since", AT, nullable=True),
        sa.Column("most_rows_deleted", sa.BigInteger(), nullable=False),
        sa.Column("partitions", sa.Integer(), nullable=True),
        sa.Column("target_file_bytes", sa.BigInteger(), nullable=False),
        sa.Column("has_sort_order", sa.Boolean(), nullable=True),
        sa.Column("read_seconds", sa.Float(), nullable=False),
        sa.Column("read_overhead_seconds", sa.Float(), nullable=False),
        sa.Column("read_before_seconds", sa.Float(), nullable=False),
        sa.Column("point_read_seconds", sa.Float(), nullable=False),
        sa.Column("point_read_overhead_seconds", sa.Float(), nullable=False),
        sa.Column("delete_files", sa.Integer(), nullable=False),
        sa.Column("delete_bytes", sa.BigInteger(), nullable=False),
        sa.Column("read_avoided_seconds", sa.Float(), nullable=False),
        sa.Column("read_saved_seconds", sa.Float(), nullable=False),
        sa.Column("saved_at", AT, nullable=True),
        sa.Column("maintenance_seconds", sa.Float(), nullable=False),
        sa.Column("data_files", sa.Integer(), nullable=False),
        sa.Column("unindexed_data_files", sa.Integer(), nullable=False),
        sa.Column("new_data_files", sa.Integer(), nullable=False),
        sa.Column("new_rows", sa.BigInteger(), nullable=False),
        sa.Column("new_bytes", sa.BigInteger(), nullable=False),
        sa.Column("unverified_data_files", sa.Integer(), nullable=False),
        sa.Column("unverified_rows", sa.BigInteger(), nullable=False),
        sa.Column("unverified_bytes", sa.BigInteger(), nullable=False),
        sa.Column("has_keys", sa.Boolean(), nullable=False),
        sa.Column("last_poll", JSON, nullable=True),
        sa.Column("poll_error", JSON, nullable=True),
        sa.Column("report_snapshot_id", sa.BigInteger(), nullable=True),
        sa.Column("indexed_snapshot_id", sa.BigInteger(), nullable=True),
        sa.Column("indexed_at", AT, nullable=True),
        sa.Column("verified_snapshot_id", sa.BigInteger(), nullable=True),
        sa.Column("reported_at", AT, nullable=True),
        sa.Column("key_sets", JSON, nullable=False),
        sa.Column("unconvertible", JSON, nullable=False),
        sa.Column("decisions", JSON, nullable=False),
        sa.Column("counted_equality_deletes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["table_id"],
            ["tables.id"],
        ),
        sa.PrimaryKeyConstraint("table_id"),
    )
    op.create_index(
        "ix_table_health_status", "table_health", ["status", "is_removed", "table_id"], unique=False
    )
    for sorted_by in ("pending_equality_deletes", "read_overhead_seconds"):
        op.create_index(f"ix_table_health_{sorted_by}", "table_health", [sorted_by, "table_id"], unique=False)
    for oldest in ("oldest_equality_delete_at", "oldest_staged_at"):
        op.create_index(f"ix_table_health_{oldest}", "table_health", [oldest], unique=False)
    op.create_index(
        "ix_table_health_failed",
        "table_health",
        ["table_id"],
        unique=False,
        sqlite_where=sa.text("poll_error IS NOT NULL"),
        postgresql_where=sa.text("poll_error IS NOT NULL"),
    )
    op.create_table(
        "last_claims",
        sa.Column("table_id", sa.String(), nullable=False),
        sa.Column("catalog_id", sa.String(), nullable=False),
        sa.Column("at", AT, nullable=False),
        sa.ForeignKeyConstraint(
            ["catalog_id"],
            ["catalogs.id"],
        ),
        sa.ForeignKeyConstraint(
            ["table_id"],
            ["tables.id"],
        ),
        sa.PrimaryKeyConstraint("table_id"),
    )
    op.create_index("ix_last_claims_catalog_id_at", "last_claims", ["catalog_id", "at"], unique=False)
    op.create_table(
        "job_rows",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("rows", JSON, nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("job_id"),
    )
    op.create_table(
        "attempts",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(), nullable=False),
        sa.Column("worker_name", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("started_at", AT, nullable=False),
        sa.Column("ended_at", AT, nullable=True),
        sa.Column("lease_expires_at", AT, nullable=False),
        sa.Column("error", JSON, nullable=True),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("stages", JSON, nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("plans", JSON, nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.ForeignKeyConstraint(
            ["worker_id"],
            ["workers.id"],
        ),
        sa.PrimaryKeyConstraint("job_id", "attempt"),
    )
    op.create_index("ix_attempts_ended_at", "attempts", ["ended_at"], unique=False)
    op.create_index(
        "ix_attempts_plans",
        "attempts",
        ["job_id"],
        unique=False,
        sqlite_where=sa.text("plans IS NOT NULL"),
        postgresql_where=sa.text("plans IS NOT NULL"),
    )
    op.create_index(
        "ix_attempts_worker_id_status_job_id", "attempts", ["worker_id", "status", "job_id"], unique=False
    )
    op.create_table(
        "events",
        sa.Column("id", BIG_ID, nullable=False),
        sa.Column("at", AT, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("level", sa.String(), nullable=False),
        sa.Column("message", sa.String(), nullable=False),
        sa.Column("table_id", sa.String(), nullable=True),
        sa.Column("job_id", sa.String(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("fields", JSON, nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
        ),
        sa.ForeignKeyConstraint(
            ["table_id"],
            ["tables.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_job_id_id", "events", ["job_id", "id"], unique=False)
    op.create_index("ix_events_table_id_id", "events", ["table_id", "id"], unique=False)
    op.create_table(
        "erasures",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("requested_by", sa.String(), nullable=False),
        sa.Column("created_at", AT, nullable=False),
        sa.Column("note", sa.String(), nullable=True),
        sa.Column("pattern", sa.String(), nullable=True),
        sa.Column("files", JSON, nullable=False),
        sa.Column("key_columns", JSON, nullable=True),
        sa.Column("key_hashes", JSON, nullable=False),
        sa.Column("erasure_secret_id", sa.String(), nullable=True),
        sa.Column("expire_snapshots", sa.Boolean(), nullable=False),
        sa.Column("receipt", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_erasures_created_at", "erasures", ["created_at"], unique=False)
    op.create_table(
        "erasure_tables",
        sa.Column("erasure_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("table_id", sa.String(), nullable=False),
        sa.Column("table_uuid", sa.String(), nullable=False),
        sa.Column("table", sa.String(), nullable=False),
        sa.Column("catalog", sa.String(), nullable=False),
        sa.Column("branch", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=True),
        sa.Column("started_at", AT, nullable=True),
        sa.Column("ended_at", AT, nullable=True),
        sa.Column("cancelled_because", sa.String(), nullable=True),
        sa.Column("error", JSON, nullable=True),
        sa.Column("report", JSON, nullable=True),
        sa.ForeignKeyConstraint(
            ["erasure_id"],
            ["erasures.id"],
        ),
        sa.PrimaryKeyConstraint("erasure_id", "number"),
    )
    op.create_index("ix_erasure_tables_job_id", "erasure_tables", ["job_id"], unique=True)
