"""A worker belongs to whoever registered it."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("registered_by", sa.String(), nullable=True))


def downgrade() -> None:
    op.drop_column("workers", "registered_by")
