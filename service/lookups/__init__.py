"""Questions about the keys of tables: asked here, answered by lookup servers."""
