"""Standing patterns enrol tables as they appear."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "enrollment_patterns",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("catalog_id", sa.String(), sa.ForeignKey("catalogs.id"), nullable=False),
        sa.Column("pattern", sa.String(), nullable=False),
        sa.Column("exclude", JSON, nullable=False),
        sa.Column("branch", sa.String(), nullable=False),
        sa.Column("policy_id", sa.String(), nullable=True),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("evaluated_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("matched", sa.Integer(), nullable=False),
        sa.Column("enrolled", sa.Integer(), nullable=False),
        sa.Column("error", JSON, nullable=True),
        sa.Column("failures", JSON, nullable=False),
    )
    for column in ("catalog_id", "created_at"):
        op.create_index(f"ix_enrollment_patterns_{column}", "enrollment_patterns", [column])


def downgrade() -> None:
    op.drop_table("enrollment_patterns")
