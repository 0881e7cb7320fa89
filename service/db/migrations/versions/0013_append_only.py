"""Events and audit entries never change: the database refuses it."""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

TABLES = ("events", "audit_entries")


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for table in TABLES:
            op.execute(
                f"CREATE TRIGGER {table}_append_only BEFORE UPDATE ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} are append-only'); END"
            )
        return
    op.execute(
        "CREATE FUNCTION refuse_update() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% are append-only', TG_TABLE_NAME; END $$"
    )
    for table in TABLES:
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION refuse_update()"
        )


def downgrade() -> None:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    for table in TABLES:
        op.execute(f"DROP TRIGGER {table}_append_only" + ("" if is_sqlite else f" ON {table}"))
    if not is_sqlite:
        op.execute("DROP FUNCTION refuse_update()")
