"""Rows that somebody writes by key: what they are, where the rows of their keys lie, and new data files."""
