"""Which rows do delete keys delete: asked of the index, or of the data files."""
