"""The files of docs/existing-stacks are taken as they are: each one must load, and name what exists."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from trainspan import settings
from trainspan.placement import FROM_ENVIRONMENT

REPOSITORY = Path(__file__).resolve().parents[2]
STACKS = REPOSITORY / "docs" / "existing-stacks"
MANIFESTS = sorted((STACKS / "kubernetes").glob("*.yaml"))
SCRIPTS = sorted((STACKS / "slurm").iterdir())
PAGES = sorted(STACKS.glob("*.md"))

OF_OPERATORS = {"Instrumentation"}
"""Kinds that Kubernetes itself has no schema of."""
OURS = {variable.name for variable in settings.VARIABLES}
OF_PLACES = {name for _, names in FROM_ENVIRONMENT for name in names}
# Read by destinations.py, sampling.py, resource.py, or by opentelemetry-instrument.
OF_OPENTELEMETRY = re.compile(
    r"OTEL_(EXPORTER_OTLP_((TRACES|METRICS|LOGS)_)?(ENDPOINT|HEADERS|CERTIFICATE|CLIENT_CERTIFICATE|CLIENT_KEY)"
    r"|(TRACES|METRICS|LOGS)_EXPORTER|TRACES_SAMPLER|SERVICE_NAME|RESOURCE_ATTRIBUTES"
    r"|PYTHON_(DISTRO|CONFIGURATOR|DISABLED_INSTRUMENTATIONS))"
)
FIELDS = re.compile(
    r"metadata\.(name|namespace|uid|labels\['batch\.kubernetes\.io/job-name'\]"
    r"|annotations\['batch\.kubernetes\.io/job-(completion-index|index-failure-count)'\])"
    r"|spec\.nodeName|status\.podIP"
)
"""What the downward API gives to a variable."""


def documents(manifest: Path) -> list[dict[str, Any]]:
    """The objects of a manifest."""
    return [found for found in yaml.safe_load_all(manifest.read_text(encoding="utf-8")) if found]


def pods(manifest: Path) -> Iterator[dict[str, Any]]:
    """The pod specifications in a manifest."""
    for found in documents(manifest):
        if "template" in found["spec"]:
            yield found["spec"]["template"]["spec"]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """All containers of a pod."""
    return [*pod.get("initContainers", []), *pod["containers"]]


def unknown(names: set[str]) -> list[str]:
    """The variables that nobody reads."""
    return sorted(name for name in names if name.startswith(("TRAINSPAN_", "OTEL_", "K8S_")) and not is_read(name))


def is_read(name: str) -> bool:
    """Whether we read this variable, or OpenTelemetry does."""
    return name in OURS or name in OF_PLACES or bool(OF_OPENTELEMETRY.fullmatch(name))


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_manifest_loads_and_its_variables_are_read(manifest: Path) -> None:
    """A misspelled variable is silent: the pod starts, and nothing is recorded."""
    given = [entry for pod in pods(manifest) for container in containers(pod) for entry in container.get("env", [])]

    values = {entry["name"]: entry["value"] for entry in given if "value" in entry}
    fields = [entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in given if "valueFrom" in entry]

    assert all({"apiVersion", "kind", "metadata", "spec"} <= set(found) for found in documents(manifest))
    assert unknown({entry["name"] for entry in given}) == []
    assert settings.load(values)[1] == []
    assert [field for field in fields if not FIELDS.fullmatch(field)] == []


@pytest.mark.parametrize("version", ["1.29", "1.37"], ids=["oldest", "newest"])
@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_kubernetes_knows_every_field(manifest: Path, version: str) -> None:
    """What is in the wrong place is refused by the API server, or worse, dropped by it."""
    of_kubernetes = [found for found in documents(manifest) if found["kind"] not in OF_OPERATORS]

    for found in of_kubernetes:
        kubernetes_validate.validate(found, version, strict=True)

    assert of_kubernetes


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    """A validation that says yes to everything would be worse than none."""
    (job,) = documents(STACKS / "kubernetes" / "job-sidecar.yaml")
    job["spec"]["template"]["spec"]["terminationGracePeriod"] = 60

    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(job, "1.29", strict=True)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_manifest_asks_for_no_rights(manifest: Path) -> None:
    """Who needs a ClusterRole waits for another team; and every mount needs its volume."""
    kinds = {found["kind"] for found in documents(manifest)}

    assert kinds <= {"Job", "DaemonSet", "Service", "Instrumentation"}
    for pod in pods(manifest):
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        mounted = {mount["name"] for container in containers(pod) for mount in container.get("volumeMounts", [])}
        assert mounted == volumes
        assert "serviceAccountName" not in pod


def test_relay_reads_where_ranks_record() -> None:
    """Two paths that differ would be two volumes that both stay empty."""
    for pair in (("job-sidecar", "job-sidecar"), ("relay-daemonset", "job-daemonset")):
        relays, jobs = (list(pods(STACKS / "kubernetes" / f"{name}.yaml")) for name in pair)

        (relay,) = (one for pod in relays for one in containers(pod) if one["command"][:2] == ["trainspan", "relay"])
        (rank,) = (one for pod in jobs for one in containers(pod) if one["command"][0] == "torchrun")
        environ = {entry["name"]: entry.get("value") for entry in rank["env"]}

        assert relay["command"][-1] == environ["TRAINSPAN_RECORDING_DIR"]
        assert environ["TRAINSPAN_RELAY"] == "off"
        of_rank, of_relay = (
            next(mount["mountPath"] for mount in one["volumeMounts"] if mount["name"] == "recordings")
            for one in (rank, relay)
        )
        assert of_rank == of_relay == "/recordings"
        users = {
            (one.get("securityContext") or pod["securityContext"])["runAsUser"]
            for pod in (*relays, *jobs)
            for one in containers(pod)
            if one in (relay, rank)
        }
        assert len(users) == 1


def test_collector_gets_variables_that_its_configuration_reads() -> None:
    """The default listens on loopback, where no pod reaches it."""
    text = (REPOSITORY / "collector-config" / "agent.yaml").read_text(encoding="utf-8")
    (pod,) = pods(STACKS / "kubernetes" / "collector-daemonset.yaml")

    given = {entry["name"] for entry in pod["containers"][0]["env"]}

    assert given <= set(re.findall(r"\$\{env:(\w+)", text))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_is_in_order(script: Path) -> None:
    """A job that waited a day for its nodes must not end in its first line."""
    text = script.read_text(encoding="utf-8")

    checked = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)

    assert (checked.returncode, checked.stderr) == (0, "")
    assert unknown(set(re.findall(r"\b([A-Z][A-Z0-9_]+)=", text))) == []


def test_task_prolog_prints_what_slurm_takes() -> None:
    """SLURM sets what is printed as `export NAME=value`, and shows everything else to the user."""
    ran = subprocess.run(
        [STACKS / "slurm" / "task-prolog.sh"],
        env={"PATH": "/usr/bin:/bin", "SCRATCH": "/scratch/somebody"},
        capture_output=True,
        text=True,
        check=True,
    )

    pairs = dict(line.removeprefix("export ").split("=", 1) for line in ran.stdout.splitlines())
    assert all(line.startswith("export ") for line in ran.stdout.splitlines())
    assert settings.load({name: value for name, value in pairs.items() if name.startswith("TRAINSPAN_")})[1] == []
    assert pairs["TRAINSPAN_ENABLED"] == "1"
    assert pairs["TRAINSPAN_DIR"] == "/scratch/somebody/trainspan"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_page_names_variables_and_files_that_exist(page: Path) -> None:
    """What is copied from a page must work."""
    text = page.read_text(encoding="utf-8")

    linked = re.findall(r"\]\(([^)#:]+)\)", text)
    missing = [name for name in linked if not (page.parent / name).exists()]

    assert missing == []
    assert unknown(set(re.findall(r"\b([A-Z][A-Z0-9]*_[A-Z0-9_]*[A-Z0-9])\b", text))) == []


def test_every_file_is_linked_from_a_page() -> None:
    """A file that no page names is found by nobody."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)

    files = [path.relative_to(STACKS).as_posix() for path in STACKS.rglob("*") if path.is_file()]
    assert [name for name in files if name != "README.md" and f"({name})" not in text] == []


def test_unknown_variable_is_found() -> None:
    """A check that finds nothing would pass for ever."""
    names = {"TRAINSPAN_RECORD_DIR", "OTEL_EXPORTER_OTLP_ENDPOIN", "K8S_POD", "TRAINSPAN_DIR", "K8S_POD_NAME"}

    found = unknown(names)

    assert found == ["K8S_POD", "OTEL_EXPORTER_OTLP_ENDPOIN", "TRAINSPAN_RECORD_DIR"]
