"""In: steps of one rank and how its process ended. Out: the account of its wall clock, state by state.

Never: I/O, a clock, OpenTelemetry; time in two states or in none.
"""
