"""Iceberg tables enrolled for maintenance."""
