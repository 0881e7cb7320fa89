"""Rows that are written by key."""
