"""Jobs: the queue that workers claim from, and the scheduler that fills it."""
