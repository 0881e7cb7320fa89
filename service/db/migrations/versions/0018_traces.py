"""Jobs are parts of traces."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("traceparent", sa.String(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "traceparent")
