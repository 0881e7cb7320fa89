"""Tables that could be enrolled, and patterns that enrol them as they appear."""
