"""Ended jobs are found by when they ended."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_jobs_ended_at", "jobs", ["ended_at"])


def downgrade() -> None:
    op.drop_index("ix_jobs_ended_at", "jobs")
