"""Positions become deletion vectors (V3) or position delete files (V2), merged with those that exist."""
