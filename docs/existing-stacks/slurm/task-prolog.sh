#!/bin/bash
# A task prolog: what it prints as `export NAME=value` is set in the task. Runs as the user.
echo "export TRAINSPAN_ENABLED=1"
echo "export TRAINSPAN_DIR=${SCRATCH:-$HOME}/trainspan"
echo "export OTEL_EXPORTER_OTLP_ENDPOINT=${OTEL_EXPORTER_OTLP_ENDPOINT:-http://collector.example.com:4318}"
