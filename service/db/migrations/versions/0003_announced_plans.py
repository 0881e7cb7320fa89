"""Attempts keep what they announced to write, until nothing of it is left in the table's location."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("plans", JSON, nullable=True))
    announced = sa.text("plans IS NOT NULL")
    op.create_index(
        "ix_attempts_plans", "attempts", ["job_id"], sqlite_where=announced, postgresql_where=announced
    )


def downgrade() -> None:
    op.drop_index("ix_attempts_plans", table_name="attempts")
    op.drop_column("attempts", "plans")
