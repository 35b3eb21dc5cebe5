"""In: marks of one rank. Out: steps, each cut into phases that never overlap and add up to it.

Never: I/O, a clock, OpenTelemetry.
"""
