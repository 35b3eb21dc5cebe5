"""In: the summaries in a run folder, of a run that is over or still going. Out: a report, as an object, JSON or text.

Never: recordings, the OpenTelemetry SDK, a write into the run folder.
"""
