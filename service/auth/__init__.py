"""Who is calling, what they may do, and what they did: API keys, sessions, roles, the audit log."""
