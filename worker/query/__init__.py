"""Where the rows of some keys are, and what they hold: from the index, and from files that it lacks."""
