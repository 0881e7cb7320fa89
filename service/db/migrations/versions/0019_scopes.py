"""API keys may be for parts of the API only."""

import sqlalchemy as sa
from alembic import op

from service.db.database import Json

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("scopes", Json, nullable=True))


def downgrade() -> None:
    # Without its scopes, a key would be for everything that its role allows.
    op.execute(
        "UPDATE api_keys SET revoked_at = CURRENT_TIMESTAMP WHERE scopes IS NOT NULL AND revoked_at IS NULL"
    )
    op.drop_column("api_keys", "scopes")
