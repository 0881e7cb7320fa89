"""Jobs know the policy that they were queued under, and the snapshot that they left."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("policy_digest", sa.String(), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("seen_snapshot_id", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    for column in ("policy_digest", "seen_snapshot_id"):
        op.drop_column("jobs", column)
