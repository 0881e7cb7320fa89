"""Who is calling and what they may do: API keys, browser sessions, roles."""
