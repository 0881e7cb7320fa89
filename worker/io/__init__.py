"""Files on any store, columns of their formats, and sorting."""
