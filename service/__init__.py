"""The control plane of Icestream: HTTP API, database, scheduler. It holds no JVM and no index."""

__version__ = "0.1.0"
