"""The suite for readers: its tables, its runner, and what readers here make of them."""
