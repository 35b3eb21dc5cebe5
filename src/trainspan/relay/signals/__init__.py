"""In: steps, accounts, ends and events of the ranks. Out: the OpenTelemetry SDK's spans, metrics and log records.

Never: I/O, a clock, an exporter; a name that is not in `names.py`.
"""
