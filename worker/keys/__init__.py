"""Key sets, and their columns as data and delete files have them."""
