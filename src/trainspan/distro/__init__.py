"""In: spans that a training script makes with the OpenTelemetry API.

Out: the same spans as children of the step they happen in, under `opentelemetry-instrument` or with `follow_steps()`.
Never: work in a process that does not train, or a wait for the network before a rank ends.
"""
