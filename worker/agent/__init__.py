"""Claims jobs, keeps their leases, reports: the process that `icestream worker` is."""
