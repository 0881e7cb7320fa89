"""Whoever commits to a table, or hears of it, says so: it is looked at at once."""
