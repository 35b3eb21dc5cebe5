"""The two tables everything is named after: names on the wire, and settings."""

import re
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest

from trainspan import names, settings
from trainspan.names import METRICS, Metric
from trainspan.otel_variables import OTEL_VARIABLES, OtelVariable
from trainspan.relay.otlp.destinations import destination
from trainspan.relay.otlp.resource import service_name
from trainspan.settings import VARIABLES, Settings, Variable

SOURCE = Path(settings.__file__).parent

UNITS = {"s", "By", "J", "W", "1", "Cel", "Hz", "g"}
TABLES = {
    "spans": names.SPANS,
    "resource attributes": names.RESOURCE_ATTRIBUTES,
    "span attributes": names.SPAN_ATTRIBUTES,
    "metric attributes": names.METRIC_ATTRIBUTES,
    "events": names.EVENTS,
}
WIRE_NAME = re.compile(r"[a-z][a-z0-9]*([._][a-z0-9]+)*")


def by_name(row: Metric | Variable | OtelVariable) -> str:
    """The id of a parametrized test."""
    return row.name


@pytest.mark.parametrize("metric", METRICS, ids=by_name)
def test_metric_is_valid_on_the_wire(metric: Metric) -> None:
    """A backend drops or renames a metric that breaks OpenTelemetry's rules, and nobody is told."""
    annotation = re.fullmatch(r"\{[a-z_]+\}", metric.unit)

    assert metric.instrument in {"histogram", "counter", "gauge", "updowncounter"}
    assert metric.unit in UNITS or annotation
    assert WIRE_NAME.fullmatch(metric.name)
    assert len(metric.name) <= 255
    assert metric.name.split(".")[0] in {"training", "trainspan", "hw"}


@pytest.mark.parametrize("metric", METRICS, ids=by_name)
def test_metric_attributes_are_declared_and_bounded(metric: Metric) -> None:
    """A step number or a trace id on a point makes a new series of every step, without end."""
    declared = {name.name for name in names.METRIC_ATTRIBUTES}

    assert set(metric.attributes) <= declared
    assert names.STEP not in declared


@pytest.mark.parametrize("metric", METRICS, ids=by_name)
def test_metric_is_explained(metric: Metric) -> None:
    """The description is all that a user of a dashboard ever sees of us."""
    assert re.fullmatch(r"[A-Z].{9,}\.", metric.description)


def test_metric_names_are_unique() -> None:
    """Two metrics of one name are merged by the backend."""
    counts = Counter(metric.name for metric in METRICS)

    assert max(counts.values()) == 1


@pytest.mark.parametrize("table", TABLES)
def test_names_are_valid_unique_and_explained(table: str) -> None:
    """One name with two meanings is a question that no query can answer."""
    rows = TABLES[table]
    counts = Counter(row.name for row in rows)

    assert max(counts.values()) == 1
    assert all(WIRE_NAME.fullmatch(row.name) for row in rows)
    assert all(re.fullmatch(r"[A-Z].{9,}\.", row.meaning) for row in rows)


def test_every_name_is_in_a_table() -> None:
    """A name that is in no table is in no reference page either."""
    constants = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    metrics = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, Metric)}

    listed = {row.name for rows in TABLES.values() for row in rows} | {names.SCOPE}

    assert constants - listed == set()
    assert metrics == set(METRICS)


@pytest.mark.parametrize("variable", VARIABLES, ids=by_name)
def test_variable_accepts_its_default(variable: Variable) -> None:
    """A default that its own check refuses would fail in every process that sets nothing."""
    text = variable.default

    value = variable.parse(text) if text else None

    assert (value is None) == (not text)


@pytest.mark.parametrize("variable", VARIABLES, ids=by_name)
def test_variable_is_explained(variable: Variable) -> None:
    """These words are the documentation and the warning."""
    assert re.fullmatch(r"TRAINSPAN_[A-Z]+(_[A-Z]+)*", variable.name)
    assert re.match(r"(use|leave) ", variable.accepted)
    assert re.fullmatch(r"[A-Z].{9,}\.", variable.meaning)


def test_variables_and_fields_are_the_same() -> None:
    """A variable without a field is read by nobody; a field without a variable cannot be set."""
    fields_of_settings = [field.name for field in fields(Settings)]

    fields_of_variables = [variable.field for variable in settings.VARIABLES]

    assert sorted(fields_of_variables) == sorted(fields_of_settings)


@pytest.mark.parametrize("variable", OTEL_VARIABLES, ids=by_name)
def test_otel_variable_is_explained(variable: OtelVariable) -> None:
    """What is not said here is taken to be as the specification has it."""
    assert re.fullmatch(r"[A-Z`].{9,}\.", variable.meaning)
    assert re.fullmatch(r"([A-Z`].{9,}\.)?", variable.differs)


def test_otel_variables_in_the_source_are_in_the_table() -> None:
    """One that is read and not listed has a meaning that nobody can look up."""
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    listed = {variable.name for variable in OTEL_VARIABLES}
    of_one_signal = {
        re.sub("(?<=OTLP_)", f"{signal}_", name) for name in listed for signal in ("TRACES", "METRICS", "LOGS")
    }

    named = set(re.findall(r"\bOTEL(?:_[A-Z]+)+\b", text)) - {"OTEL_VARIABLES"}

    assert named - listed - of_one_signal == set()


def test_otel_variables_of_every_signal_are_those_that_are_looked_for() -> None:
    """Their names are put together in one file, so no text of it holds them."""
    asked = set(
        re.findall(
            r"(?:_given|_choice|_file|_names)\(.*?\"([A-Z_]+)\"", (SOURCE / "relay/otlp/destinations.py").read_text()
        )
    )

    assert {f"OTEL_EXPORTER_OTLP_{what}" for what in asked} == {v.name for v in OTEL_VARIABLES if v.each_signal}


def test_otel_defaults_are_those_in_force() -> None:
    """A table beside the code goes stale in silence."""
    defaults = {variable.name.removeprefix("OTEL_EXPORTER_OTLP_"): variable.default for variable in OTEL_VARIABLES}
    found = destination("traces", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"})

    assert (defaults["PROTOCOL"], defaults["TIMEOUT"]) == (found.protocol, f"{found.timeout_s * 1000:g}")
    assert (defaults["COMPRESSION"], defaults["INSECURE"]) == ("none", "false")
    assert not found.gzip
    assert defaults["OTEL_SERVICE_NAME"] == service_name({}, {})
