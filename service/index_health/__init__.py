"""How each table and its index are doing: polled from Iceberg, reported by workers."""
