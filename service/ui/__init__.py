"""The pages: rendered here from the same service functions as the API; no build step, no other hosts."""
