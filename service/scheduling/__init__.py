"""What happens by itself: polls, the scheduler, retention, deliveries."""
