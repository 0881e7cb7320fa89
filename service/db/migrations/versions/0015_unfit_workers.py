"""Workers that can't run jobs say why."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("problem", sa.String(), nullable=True))


def downgrade() -> None:
    op.drop_column("workers", "problem")
