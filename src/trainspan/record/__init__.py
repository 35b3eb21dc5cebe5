"""In: what torch does in this process. Out: marks and events in a recording.

Never: a thread, a socket, OpenTelemetry, a device sync, a random draw, an exception into the user's program.
"""
