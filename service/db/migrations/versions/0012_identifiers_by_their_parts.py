"""Tables and namespaces are told apart by their parts, in which there may be dots."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from service.errors import StartError

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
TABLES = sa.table(
    "tables",
    sa.column("id"),
    sa.column("catalog_id"),
    sa.column("identifier", JSON),
    sa.column("namespace"),
    sa.column("name"),
    sa.column("branch"),
    sa.column("deleted_at"),
)
ATTACHMENTS = sa.table(
    "policy_attachments",
    sa.column("target"),
    sa.column("level"),
    sa.column("catalog_id"),
    sa.column("namespace", JSON),
)
UNIQUE = "uq_tables_identifier_branch"
ENROLLED = sa.text("deleted_at IS NULL")

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tables", sa.Column("namespace", sa.String(), nullable=False, server_default=""))
    connection = op.get_bind()
    for table in connection.execute(sa.select(TABLES.c.id, TABLES.c.identifier)).all():
        namespace = ".".join(table.identifier[:-1])
        connection.execute(sa.update(TABLES).where(TABLES.c.id == table.id).values(namespace=namespace))
    _make_unique("identifier")
    for target, catalog_id, parts in _namespaces():
        _rename(target, f"namespace:{catalog_id}:{json.dumps(parts)}")


def downgrade() -> None:
    _refuse_ambiguous()
    for target, catalog_id, parts in _namespaces():
        _rename(target, f"namespace:{catalog_id}:{'.'.join(parts)}")
    _make_unique("name")
    op.drop_column("tables", "namespace")


def _make_unique(column: str) -> None:
    op.drop_index(UNIQUE, "tables")
    columns = ["catalog_id", column, "branch"]
    op.create_index(UNIQUE, "tables", columns, unique=True, sqlite_where=ENROLLED, postgresql_where=ENROLLED)


def _namespaces() -> Iterator[tuple[str, str, list[str]]]:
    """Target, catalog and parts of each namespace that has a policy."""
    query = sa.select(ATTACHMENTS.c.target, ATTACHMENTS.c.catalog_id, ATTACHMENTS.c.namespace)
    for row in op.get_bind().execute(query.where(ATTACHMENTS.c.level == "namespace")).all():
        yield row.target, row.catalog_id, row.namespace


def _rename(target: str, new: str) -> None:
    op.get_bind().execute(sa.update(ATTACHMENTS).where(ATTACHMENTS.c.target == target).values(target=new))


def _refuse_ambiguous() -> None:
    """The older version takes names that agree with dots for one, and can't keep both."""
    query = sa.select(TABLES.c.catalog_id, TABLES.c.name, TABLES.c.branch)
    tables = op.get_bind().execute(query.where(TABLES.c.deleted_at.is_(None))).all()
    namespaces = [(catalog_id, ".".join(parts)) for _, catalog_id, parts in _namespaces()]
    found = [
        *(f"table {name} (branch {branch})" for _, name, branch in _repeated(map(tuple, tables))),
        *(f"namespace {name}" for _, name in _repeated(namespaces)),
    ]
    if found:
        raise StartError(
            f"The older version tells names with dots in their parts from no others, and these exist more "
            f"than once: {', '.join(found)}. Remove all but one of each, or their policies, and try again."
        )


def _repeated(keys: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return sorted(key for key, count in Counter(keys).items() if count > 1)
