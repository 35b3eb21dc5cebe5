"""In: finished spans, metrics and log records of the OpenTelemetry SDK. Out: OTLP over the network, and the run folder.

Never: a fact that is sent before it is on disk; an exception to who puts; a wait longer than it was given.
"""
