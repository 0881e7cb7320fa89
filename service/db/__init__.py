"""The control database: connections, transactions, migrations."""
