"""Alembic environment: migrations run on the connection that `service.db.database.migrate` opened."""

from alembic import context

# One transaction for all migrations: a failed one leaves the database as it was.
context.configure(
    connection=context.config.attributes["connection"],
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
