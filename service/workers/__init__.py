"""Workers: registration, liveness, and the calls that they make about their attempts."""
