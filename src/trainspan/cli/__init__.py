"""In: words of a command line, TRAINSPAN_* and OTEL_* variables. Out: text or JSON for a reader, and an exit code.

Never: torch; training code. What a command needs is imported when that command runs.
"""
