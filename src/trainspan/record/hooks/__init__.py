"""In: torch, imported. Out: calls to the marker at the start and end of each phase; one file per phase.

Never: the user's call inside a `try` that swallows; work while a compiler traces.
"""
