"""A policy that a standing pattern names cannot go, however close together both are asked for."""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_KEY = "fk_enrollment_patterns_policy_id"


def upgrade() -> None:
    # What was lost to such a race: its tables inherit, as they would have without the policy.
    op.execute(
        "UPDATE enrollment_patterns SET policy_id = NULL WHERE policy_id NOT IN (SELECT id FROM policies)"
    )
    with op.batch_alter_table("enrollment_patterns") as table:
        table.create_foreign_key(_KEY, "policies", ["policy_id"], ["id"])


def downgrade() -> None:
    with op.batch_alter_table("enrollment_patterns") as table:
        table.drop_constraint(_KEY, type_="foreignkey")
