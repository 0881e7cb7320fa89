"""The status of each table for lists; samples say how long they stay, and tell of each key set."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("table_health") as health:
        health.add_column(sa.Column("status", sa.String(), nullable=False, server_default="unknown"))
        health.add_column(sa.Column("status_reason", sa.String(), nullable=False, server_default=""))
        health.create_index("ix_table_health_status", ["status"])
    with op.batch_alter_table("health_samples") as samples:
        # What is there stays as long as history does.
        samples.add_column(sa.Column("resolution", sa.String(), nullable=False, server_default="hour"))
        samples.add_column(sa.Column("key_sets", JSON, nullable=False, server_default="[]"))


def downgrade() -> None:
    with op.batch_alter_table("health_samples") as samples:
        samples.drop_column("key_sets")
        samples.drop_column("resolution")
    with op.batch_alter_table("table_health") as health:
        health.drop_index("ix_table_health_status")
        health.drop_column("status_reason")
        health.drop_column("status")
