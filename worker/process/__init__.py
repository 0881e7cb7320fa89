"""What a process has of its own: slots, threads, and the secrets that it keeps out of what it says."""
