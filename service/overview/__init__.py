"""The whole installation at once."""
