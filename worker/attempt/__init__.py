"""What one attempt at a job has: its assignment, the pinned table, where it tells what it does."""
