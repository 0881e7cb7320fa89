"""An API key may get a new secret, with the old one good for a while."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("rotated_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("api_keys", sa.Column("previous_key_hash", sa.String(), nullable=True))
    op.add_column("api_keys", sa.Column("previous_expires_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index("ix_api_keys_previous_key_hash", "api_keys", ["previous_key_hash"], unique=True)


def downgrade() -> None:
    op.drop_index("ix_api_keys_previous_key_hash", "api_keys")
    for column in ("previous_expires_at", "previous_key_hash", "rotated_at"):
        op.drop_column("api_keys", column)
