"""Health counts rows and bytes of what is new, pending, and not verified."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_COUNTS = (
    ("convertible_bytes", sa.BigInteger()),
    ("new_rows", sa.BigInteger()),
    ("new_bytes", sa.BigInteger()),
    ("unverified_data_files", sa.Integer()),
    ("unverified_rows", sa.BigInteger()),
    ("unverified_bytes", sa.BigInteger()),
)


def upgrade() -> None:
    for name, kind in _COUNTS:
        op.add_column("table_health", sa.Column(name, kind, nullable=False, server_default="0"))
    op.add_column("table_health", sa.Column("verified_snapshot_id", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("table_health", "verified_snapshot_id")
    for name, _ in _COUNTS:
        op.drop_column("table_health", name)
