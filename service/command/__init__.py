"""The commands of `icestream`."""
