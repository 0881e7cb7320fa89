"""Jobs have the timeout of their policy, and an answer that is replayed has the headers of the first."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("timeout_seconds", sa.Float(), nullable=False, server_default="0"))
    op.add_column("idempotent_answers", sa.Column("headers", _JSON, nullable=False, server_default="{}"))


def downgrade() -> None:
    op.drop_column("idempotent_answers", "headers")
    op.drop_column("jobs", "timeout_seconds")
