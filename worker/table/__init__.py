"""The Iceberg table: its catalog, the live files of a snapshot, its delete files, and the commit."""
