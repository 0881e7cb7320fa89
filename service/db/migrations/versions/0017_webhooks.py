"""Webhooks, and the outbox of what is sent to them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
PENDING = sa.text("status = 'pending'")
AT = sa.DateTime(timezone=True)

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("name", sa.String(), nullable=False, unique=True),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("kinds", JSON, nullable=False),
        sa.Column("secret", sa.String(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("disabled_because", sa.String(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("created_at", AT, nullable=False),
        sa.Column("updated_at", AT, nullable=False),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", BIG_ID, primary_key=True),
        sa.Column("message_id", sa.String(), nullable=False),
        sa.Column("webhook_id", sa.String(), sa.ForeignKey("webhooks.id"), nullable=False),
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
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_webhook_deliveries_pending",
        "webhook_deliveries",
        ["webhook_id", "table_id", "id"],
        sqlite_where=PENDING,
        postgresql_where=PENDING,
    )
    op.create_index(
        "ix_webhook_deliveries_webhook_id_status_id", "webhook_deliveries", ["webhook_id", "status", "id"]
    )
    op.create_index("ix_webhook_deliveries_status_created_at", "webhook_deliveries", ["status", "created_at"])


def downgrade() -> None:
    op.drop_table("webhook_deliveries")
    op.drop_table("webhooks")
