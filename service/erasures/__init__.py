"""Keys that are erased from tables, with a receipt."""
