"""Where a rank runs, as its scheduler says: resource attributes, from an allow-list of variables (law 8).

A rank writes them into its recording. The relay that reads it may stand in another pod, or on a login node days later.
"""

from collections.abc import Mapping
from itertools import takewhile
from typing import Final, NamedTuple

FROM_ENVIRONMENT: Final = (
    ("k8s.cluster.name", ("K8S_CLUSTER_NAME",)),
    ("k8s.namespace.name", ("K8S_NAMESPACE_NAME", "POD_NAMESPACE", "OTEL_RESOURCE_ATTRIBUTES_POD_NAMESPACE")),
    ("k8s.node.name", ("K8S_NODE_NAME", "NODE_NAME", "OTEL_RESOURCE_ATTRIBUTES_NODE_NAME")),
    ("k8s.pod.name", ("K8S_POD_NAME", "POD_NAME", "OTEL_RESOURCE_ATTRIBUTES_POD_NAME")),
    ("k8s.pod.uid", ("K8S_POD_UID", "POD_UID", "OTEL_RESOURCE_ATTRIBUTES_POD_UID")),
    ("k8s.pod.ip", ("K8S_POD_IP", "POD_IP", "OTEL_POD_IP")),
    ("k8s.container.name", ("K8S_CONTAINER_NAME",)),
    ("k8s.job.name", ("K8S_JOB_NAME",)),
    ("k8s.job.uid", ("K8S_JOB_UID",)),
    ("slurm.cluster.name", ("SLURM_CLUSTER_NAME",)),
    ("slurm.job.id", ("SLURM_JOB_ID",)),
    ("slurm.job.name", ("SLURM_JOB_NAME",)),
    ("slurm.job.partition", ("SLURM_JOB_PARTITION",)),
    ("slurm.array.job_id", ("SLURM_ARRAY_JOB_ID",)),
    ("slurm.array.task_id", ("SLURM_ARRAY_TASK_ID",)),
    ("slurm.node.name", ("SLURMD_NODENAME",)),
    ("ray.cluster.name", ("RAY_CLUSTER_NAME",)),
    ("ray.job.id", ("RAY_JOB_ID",)),
    ("ray.job.submission_id", ("RAY_JOB_SUBMISSION_ID",)),
    ("kubeflow.job.id", ("KUBEFLOW_TRAINING_JOB_ID",)),
)
"""(attribute, variables in order of preference): what schedulers set, and what a downward API is usually named.

`k8s.*` are the names of the semantic conventions; for the others there are none, and these are in use.

Source: https://opentelemetry.io/docs/specs/semconv/resource/k8s/, and what the OpenTelemetry Operator injects.
"""

_HIP_SHOWS: Final = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""The first that is not empty counts: HIP passes over an empty one, and shows everything where both are.

Source: https://github.com/ROCm/clr, rocclr/device/rocm/rocdevice.cpp
"""

_MOST_VISIBLE: Final = 64


def place_of(environ: Mapping[str, str]) -> dict[str, str]:
    """What the environment says of the place: what the user says in `OTEL_RESOURCE_ATTRIBUTES` wins."""
    given = attributes_given(environ)
    if environ.get("OTEL_SERVICE_NAME"):
        given["service.name"] = environ["OTEL_SERVICE_NAME"]
    return {**scheduler_attributes(environ), **given}


def scheduler_attributes(environ: Mapping[str, str]) -> dict[str, str]:
    """What schedulers and the downward API say; an empty variable says nothing."""
    found = {}
    for attribute, variables in FROM_ENVIRONMENT:
        value = next((environ[name] for name in variables if environ.get(name)), None)
        if value is not None:
            found[attribute] = value
    if "MPI_LOCALRANKID" in environ:
        # MPICH and Intel MPI take their environment to all nodes, the name of the first one included.
        found.pop("slurm.node.name", None)
    return found


def attributes_given(environ: Mapping[str, str]) -> dict[str, str]:
    """What `OTEL_RESOURCE_ATTRIBUTES` holds: `key=value` pairs, percent-encoded, separated by commas.

    A pair without a key or an equals sign is left out.

    Source: https://opentelemetry.io/docs/specs/otel/resource/sdk/#specifying-resource-information-via-an-environment-variable
    """
    text = environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if not text:
        return {}
    # Imported here: a rank without the variable has no use for it.
    from urllib.parse import unquote

    pairs = (pair.partition("=") for pair in text.split(","))
    return {unquote(key.strip()): unquote(value.strip()) for key, equals, value in pairs if equals and key.strip()}


class VisibleDevices(NamedTuple):
    """What CUDA or ROCm shows a process. `entries`: numbers, UUIDs or MIG ids; None: everything."""

    entries: list[str] | None
    in_pci_order: bool


def visible_devices(environ: Mapping[str, str], *, hip: bool) -> VisibleDevices:
    """What the environment says of the devices this process sees.

    Args:
        environ: the environment.
        hip: whether its torch is one for ROCm, whose runtime has a list of its own: HIP's numbers are places in that.

    Source: CUDA C++ Programming Guide, environment variables; ROCm, GPU isolation techniques.
    """
    if hip:
        entries = _listed(next((environ[name] for name in _HIP_SHOWS if environ.get(name)), None))
        runtime = _listed(environ.get("ROCR_VISIBLE_DEVICES"))
        if runtime is not None:
            entries = runtime if entries is None else list(takewhile(bool, (_in(runtime, entry) for entry in entries)))
    else:
        entries = _listed(environ.get("CUDA_VISIBLE_DEVICES"))
    return VisibleDevices(entries, environ.get("CUDA_DEVICE_ORDER", "").strip().upper() == "PCI_BUS_ID")


def _listed(text: str | None) -> list[str] | None:
    """The entries of a list up to the first that is no device: nothing behind that is shown. None: all is shown."""
    if text is None:
        return None
    entries = [entry.strip()[:80] for entry in text.split(",")][:_MOST_VISIBLE]
    end = next((place for place, entry in enumerate(entries) if not _is_device(entry)), len(entries))
    return entries[:end]


def _in(runtime: list[str], entry: str) -> str:
    """What a number means among what the runtime shows; empty: nothing."""
    if not entry.isdecimal():
        return entry
    return runtime[int(entry)] if len(entry) < 10 and int(entry) < len(runtime) else ""


def _is_device(entry: str) -> bool:
    return (entry.isascii() and entry.isdecimal()) or entry.upper().startswith(("GPU-", "MIG-"))
