"""Jobs: the queue that workers claim from, and what they report."""
