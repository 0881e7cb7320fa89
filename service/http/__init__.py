"""What all calls have in common: bodies, pages, versions, headers, problem documents."""
