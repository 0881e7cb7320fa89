"""What the service and the workers tell of themselves alike; it knows neither of the two."""
