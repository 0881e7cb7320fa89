"""`icestream lookup`: answers over HTTP where keys are, and what their rows hold. No JVM, no state."""
