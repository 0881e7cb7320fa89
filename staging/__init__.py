"""What waits on a staging branch for its publication: alike in service and worker."""
