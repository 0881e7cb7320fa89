"""Iceberg catalogs: registered by an admin, read through PyIceberg."""
