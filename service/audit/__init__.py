"""Who did what: every write that was allowed or denied."""
