"""Webhooks: events of jobs and tables, signed and sent to whoever asked for them."""
