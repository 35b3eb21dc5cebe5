"""In: the recordings of one node's ranks. Out: OTLP, and the run folder.

Never: torch; a word back to the ranks.
"""
