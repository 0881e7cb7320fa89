"""Health tells what is pending of each key set."""

import sqlalchemy as sa
from alembic import op

from service.db.database import Json

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("table_health") as health:
        health.add_column(sa.Column("pending_key_sets", Json, nullable=False, server_default="[]"))


def downgrade() -> None:
    with op.batch_alter_table("table_health") as health:
        health.drop_column("pending_key_sets")
