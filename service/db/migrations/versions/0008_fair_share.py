"""Turns of tables, held jobs, and what attempts took."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "turns",
        sa.Column("table_id", sa.String(), nullable=False),
        sa.Column("catalog_id", sa.String(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["table_id"], ["tables.id"]),
        sa.ForeignKeyConstraint(["catalog_id"], ["catalogs.id"]),
        sa.PrimaryKeyConstraint("table_id"),
    )
    op.add_column("catalogs", sa.Column("max_running_jobs", sa.Integer(), nullable=True))
    op.add_column("jobs", sa.Column("held_because", sa.String(), nullable=True))
    op.add_column("attempts", sa.Column("seconds", sa.Float(), nullable=False, server_default="0"))
    op.add_column("attempts", sa.Column("stages", JSON, nullable=False, server_default="[]"))
    for name in ("rows", "bytes"):
        op.add_column("attempts", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    op.create_index("ix_attempts_ended_at", "attempts", ["ended_at"])


def downgrade() -> None:
    op.drop_index("ix_attempts_ended_at", "attempts")
    for name in ("seconds", "stages", "rows", "bytes"):
        op.drop_column("attempts", name)
    op.drop_column("jobs", "held_because")
    op.drop_column("catalogs", "max_running_jobs")
    op.drop_table("turns")
