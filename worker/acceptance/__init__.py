"""`icestream accept`: tables of its own in somebody's catalog and store, through all kinds of jobs."""
