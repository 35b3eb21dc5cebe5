"""In: marks and events of one process. Out: the same, read by another process while the first lives or after.

Never: torch, OpenTelemetry, a network, an exception because of what the bytes hold.
"""
