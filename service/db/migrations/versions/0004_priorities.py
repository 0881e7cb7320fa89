"""Jobs have a priority, and may ask for a time to run at."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("priority", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("run_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    for column in ("priority", "run_at"):
        op.drop_column("jobs", column)
