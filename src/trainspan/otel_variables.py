"""ONE table of every `OTEL_*` variable that is read, with what is done where it differs from the specification.

The files that read them: `sampling`, `placement`, `relay/otlp/destinations`, `relay/signals/metrics`, the distro. Those
that no other file has to itself are read here. As in `settings`, reading never raises.

Source: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/ and
https://opentelemetry.io/docs/specs/otel/protocol/exporter/
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from trainspan.placement import FROM_ENVIRONMENT
from trainspan.sampling import FIRST_STEPS, SHARE
from trainspan.settings import Problem

INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
INTERVAL_MS: Final = 60_000
TEMPORALITY: Final = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"


class OtelVariable(NamedTuple):
    """One row of the table. `differs`: from the specification; empty: it does not.

    `each_signal`: TRACES, METRICS or LOGS behind OTLP makes it the variable of one signal, which has precedence.
    """

    name: str
    default: str
    meaning: str
    differs: str = ""
    each_signal: bool = False


_OTLP: Final = "OTEL_EXPORTER_OTLP_"

OTEL_VARIABLES: Final = (
    OtelVariable(
        "OTEL_SDK_DISABLED",
        "false",
        "`true`: no signal is exported or kept as OTLP. The report and the goodput remain.",
    ),
    OtelVariable("OTEL_SERVICE_NAME", "trainspan", "`service.name` of everything that is sent."),
    OtelVariable("OTEL_RESOURCE_ATTRIBUTES", "", "Attributes of everything that is sent: key=value, with commas."),
    *(
        OtelVariable(
            f"OTEL_{signal}_EXPORTER",
            "otlp",
            "`otlp`, `none`, or `console`, which is the relay's log in the run folder.",
            "One of them, not a list.",
        )
        for signal in ("TRACES", "METRICS", "LOGS")
    ),
    OtelVariable(
        f"{_OTLP}ENDPOINT",
        "",
        "The address to send to.",
        "Unset: nowhere, not to localhost; the run folder holds everything.",
        each_signal=True,
    ),
    OtelVariable(
        f"{_OTLP}PROTOCOL", "http/protobuf", "`http/protobuf` or `grpc`.", "No `http/json`.", each_signal=True
    ),
    OtelVariable(f"{_OTLP}HEADERS", "", "Headers of each request: name=value, with commas.", each_signal=True),
    OtelVariable(
        f"{_OTLP}TIMEOUT",
        "10000",
        "How long one export may take, in milliseconds.",
        "A number below 100 or with a fraction is seconds, as Python's SDK reads it.",
        each_signal=True,
    ),
    OtelVariable(f"{_OTLP}COMPRESSION", "none", "`gzip` or `none`.", each_signal=True),
    OtelVariable(f"{_OTLP}CERTIFICATE", "", "PEM file of the authority to trust.", each_signal=True),
    OtelVariable(f"{_OTLP}CLIENT_KEY", "", "PEM file of our key, for mTLS.", each_signal=True),
    OtelVariable(f"{_OTLP}CLIENT_CERTIFICATE", "", "PEM file of our certificate, for mTLS.", each_signal=True),
    OtelVariable(f"{_OTLP}INSECURE", "false", "`true`: no TLS over grpc, where the endpoint has no scheme.", "", True),
    OtelVariable(
        TEMPORALITY,
        "cumulative",
        "`cumulative`.",
        "`delta` and `lowmemory` are not honoured, and the relay says so.",
    ),
    OtelVariable(
        f"{_OTLP}METRICS_DEFAULT_HISTOGRAM_AGGREGATION",
        "explicit_bucket_histogram",
        "`explicit_bucket_histogram` or `base2_exponential_bucket_histogram`.",
    ),
    OtelVariable(INTERVAL, str(INTERVAL_MS), "How often metrics are sent, in milliseconds."),
    OtelVariable(
        "OTEL_TRACES_SAMPLER",
        "",
        "Which steps get a trace: `always_on`, `always_off`, `traceidratio`, or one of them behind `parentbased_`. "
        "A step that failed always does, unless sampling is off.",
        f"Unset: the first {FIRST_STEPS} steps of an attempt, {SHARE:.0%} of the others by trace id, "
        "and those that turn out slow, straggling, failed or last.",
    ),
    OtelVariable("OTEL_TRACES_SAMPLER_ARG", "1", "The share of the steps, for `traceidratio`."),
    OtelVariable(
        "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
        "",
        "The SDK's own: an entry point that makes the session for http/protobuf; `HTTP_TRACES_` and so on for one.",
        "Not the specification's.",
    ),
    OtelVariable(
        "OTEL_PYTHON_DISTRO",
        "",
        "What `opentelemetry-instrument` loads; another than `trainspan_distro` does what it always does.",
        "Not the specification's.",
    ),
    OtelVariable(
        "OTEL_PYTHON_CONFIGURATOR",
        "",
        "The configurator that it loads; another than `trainspan_configurator` sets up the SDK instead of ours.",
        "Not the specification's.",
    ),
    OtelVariable(
        "OTEL_METRICS_EXEMPLAR_FILTER",
        "always_off",
        "Of the SDK that `opentelemetry-instrument` sets up in a rank.",
        "The specification's default is `trace_based`; in Python that draws from the script's random stream.",
    ),
    *(
        OtelVariable(name, "", f"`{attribute}`, as the OpenTelemetry Operator injects it.", "Not the specification's.")
        for attribute, names in FROM_ENVIRONMENT
        for name in names
        if name.startswith("OTEL_")
    ),
)


def metric_interval_from(environ: Mapping[str, str]) -> tuple[int, list[Problem]]:
    """How often metrics are sent, in ms, as `environ` asks; what is not understood is a problem, and not set."""
    text = environ.get(INTERVAL, "").strip()
    if not text:
        return INTERVAL_MS, []
    if text.isdecimal() and int(text) > 0:
        return int(text), []
    return INTERVAL_MS, [Problem(INTERVAL, text, f"use milliseconds from 1; going on with {INTERVAL_MS}")]


def temporality_complaint(environ: Mapping[str, str]) -> str | None:
    """What to say where another temporality is preferred than metrics have; None: nothing.

    A delta that is dropped while an endpoint is away is lost for good; the next cumulative point holds all of it. And
    an attempt's series go on where another relay of it began.
    """
    text = environ.get(TEMPORALITY, "").strip()
    if text.lower() in ("", "cumulative"):
        return None
    return (
        f"{TEMPORALITY}={text!r} is not honoured: metrics are cumulative, so that a batch that is lost costs nothing; "
        "the Collector's processor `cumulativetodelta` makes deltas of them"
    )
