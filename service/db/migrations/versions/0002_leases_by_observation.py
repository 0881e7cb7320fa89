"""Leases count their renewals: what expires is told by a monotonic clock, not by the time in the row."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("jobs", "leases"):
        op.add_column(table, sa.Column("renewals", sa.Integer(), nullable=False, server_default="0"))
    op.drop_index("ix_jobs_lease_expires_at", table_name="jobs")


def downgrade() -> None:
    op.create_index("ix_jobs_lease_expires_at", "jobs", ["lease_expires_at"])
    for table in ("jobs", "leases"):
        op.drop_column(table, "renewals")
