"""Whose telemetry it is."""

from collections.abc import Mapping

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.version import __version__ as sdk_version

from trainspan import __version__
from trainspan.identity import Identity
from trainspan.placement import place_of
from trainspan.relay.otlp.resource import HashedResource, node_resource, rank_resource

IDENTITY = Identity("rank", "run-7", 2, 5, 1, 1, 8, 4, "node-b", 4711, "torchrun")

RANK = {
    "service.name": "trainspan",
    "service.instance.id": "run-7-rank5",
    "telemetry.sdk.language": "python",
    "telemetry.sdk.name": "opentelemetry",
    "telemetry.sdk.version": sdk_version,
    "telemetry.distro.name": "trainspan",
    "telemetry.distro.version": __version__,
    "host.name": "node-b",
    "process.pid": 4711,
    "training.run.id": "run-7",
    "training.attempt": 2,
    "training.rank": 5,
    "training.local_rank": 1,
    "training.node_rank": 1,
    "training.world_size": 8,
}


def test_rank_is_identified_whole() -> None:
    """Every series and span is found by these, and nothing else of the process may leave it."""
    found = rank_resource(IDENTITY, {"SECRET": "x", "USER": "somebody"})

    assert dict(found.attributes) == RANK


def test_node_is_identified_whole() -> None:
    """What belongs to no rank must not look like a rank's."""
    found = node_resource("run-7", 2, 1, "node-b", {})

    of_rank_alone = {"process.pid", "training.rank", "training.local_rank", "training.world_size"}
    shared = {key: value for key, value in RANK.items() if key not in of_rank_alone}
    assert dict(found.attributes) == {**shared, "service.instance.id": "run-7-node1"}


def test_relay_beside_the_nodes_own_speaks_under_a_name_of_its_own() -> None:
    """Two values of one series would be one too many; and the name comes back when the rank does."""
    found = node_resource("run-7", 2, 1, "node-b", {}, rank_beside=5)

    assert found.attributes["service.instance.id"] == "run-7-node1-rank5"
    assert found.attributes["training.node_rank"] == 1


def test_variable_that_is_no_utf8_is_sent_with_a_mark_in_its_place() -> None:
    """The encoder would leave out the whole attribute, and say so for each batch."""
    environ = {"OTEL_SERVICE_NAME": "train\udcff", "OTEL_RESOURCE_ATTRIBUTES": "team=\udce9quipe"}

    found = node_resource("run-7", 2, 1, "node-b", environ)

    assert (found.attributes["service.name"], found.attributes["team"]) == ("train?", "?quipe")


def test_node_that_has_met_no_other_has_no_rank() -> None:
    """Zero would be the rank of another one, and two nodes would write one series."""
    found = node_resource("run-7", 2, None, "node-b", {})

    assert "training.node_rank" not in found.attributes
    assert found.attributes["service.instance.id"] == "run-7-node-b"


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, "trainspan"),
        ({"OTEL_SERVICE_NAME": "llm"}, "llm"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=other"}, "other"),
        ({"OTEL_SERVICE_NAME": "llm", "OTEL_RESOURCE_ATTRIBUTES": "service.name=other"}, "llm"),
        ({"OTEL_SERVICE_NAME": "", "OTEL_RESOURCE_ATTRIBUTES": "service.name="}, "trainspan"),
    ],
)
def test_service_name_is_the_users(environ: Mapping[str, str], name: str) -> None:
    """It is what Jaeger asks for first."""
    found = rank_resource(IDENTITY, environ)

    assert found.attributes["service.name"] == name


def test_resource_attributes_are_merged_but_do_not_merge_ranks() -> None:
    """One value for the whole job must not make all ranks one instance."""
    given = " team = a%20b ,host.name=mine,service.instance.id=all,training.rank=0,novalue,=x,empty="

    found = rank_resource(IDENTITY, {"OTEL_RESOURCE_ATTRIBUTES": given})

    assert dict(found.attributes) == {**RANK, "team": "a b", "host.name": "mine", "empty": ""}


def test_scheduler_is_told_by_allow_list() -> None:
    """To find the job of a node at the scheduler, without sending its environment."""
    environ = {"SLURM_JOB_ID": "99", "POD_NAME": "p-0", "K8S_POD_NAME": "p-1", "SLURM_JWT": "s3cret"}

    found = rank_resource(IDENTITY, environ)

    assert dict(found.attributes) == {**RANK, "slurm.job.id": "99", "k8s.pod.name": "p-1"}


POD = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "K8S_NAMESPACE_NAME": "ml",
    "K8S_POD_NAME": "llama-0-x7k2p",
    "K8S_POD_UID": "6f9c",
    "K8S_NODE_NAME": "gpu-07",
    "K8S_JOB_NAME": "llama",
    "K8S_CONTAINER_NAME": "train",
}
IN_POD = {
    "k8s.namespace.name": "ml",
    "k8s.pod.name": "llama-0-x7k2p",
    "k8s.pod.uid": "6f9c",
    "k8s.node.name": "gpu-07",
    "k8s.job.name": "llama",
    "k8s.container.name": "train",
}
# As the OpenTelemetry Operator injects them.
INJECTED = {
    "OTEL_RESOURCE_ATTRIBUTES_POD_NAME": "llama-0-x7k2p",
    "OTEL_RESOURCE_ATTRIBUTES_NODE_NAME": "gpu-07",
    "OTEL_POD_IP": "10.0.0.7",
    "OTEL_NODE_IP": "10.1.0.7",
    "OTEL_SERVICE_NAME": "llama",
    "OTEL_RESOURCE_ATTRIBUTES": "k8s.container.name=train,k8s.namespace.name=ml,k8s.pod.uid=6f9c",
}
IN_INJECTED = {
    "service.name": "llama",
    "k8s.pod.name": "llama-0-x7k2p",
    "k8s.node.name": "gpu-07",
    "k8s.pod.ip": "10.0.0.7",
    "k8s.container.name": "train",
    "k8s.namespace.name": "ml",
    "k8s.pod.uid": "6f9c",
}
SLURM = {
    "SLURM_JOB_ID": "81723",
    "SLURM_JOB_NAME": "llama",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_CLUSTER_NAME": "alps",
    "SLURM_ARRAY_JOB_ID": "81720",
    "SLURM_ARRAY_TASK_ID": "3",
    "SLURMD_NODENAME": "gpu-07",
    "SLURM_JOB_USER": "somebody",
    "SLURM_JOB_ACCOUNT": "secret-project",
    "SLURM_JWT": "s3cret",
}
IN_SLURM = {
    "slurm.job.id": "81723",
    "slurm.job.name": "llama",
    "slurm.job.partition": "gpu",
    "slurm.cluster.name": "alps",
    "slurm.array.job_id": "81720",
    "slurm.array.task_id": "3",
    "slurm.node.name": "gpu-07",
}
RAY = {"RAY_JOB_ID": "02000000", "RAY_CLUSTER_NAME": "train-abc", "RAY_JOB_SUBMISSION_ID": "raysubmit_1", "RANK": "0"}
IN_RAY = {"ray.job.id": "02000000", "ray.cluster.name": "train-abc", "ray.job.submission_id": "raysubmit_1"}
KUBEFLOW = {"KUBEFLOW_TRAINING_JOB_ID": "job-7", "PET_NNODES": "2", "PET_MASTER_ADDR": "llama-0", "POD_NAME": "llama-0"}
IN_KUBEFLOW = {"kubeflow.job.id": "job-7", "k8s.pod.name": "llama-0"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "bert-42", "RANK": "5", "MASTER_ADDR": "10.0.0.1", "TORCHELASTIC_ERROR_FILE": "/e"}


@pytest.mark.parametrize(
    ("environ", "attributes"),
    [(POD, IN_POD), (INJECTED, IN_INJECTED), (SLURM, IN_SLURM), (RAY, IN_RAY), (KUBEFLOW, IN_KUBEFLOW), (TORCHRUN, {})],
    ids=["pod", "operator", "slurm", "ray", "kubeflow", "torchrun"],
)
def test_place_is_detected_by_allow_list(environ: Mapping[str, str], attributes: Mapping[str, str]) -> None:
    """These lead to the job at its scheduler; what is not on the list stays where it is, secrets above all."""
    found = rank_resource(IDENTITY, {**environ, "AWS_SECRET_ACCESS_KEY": "s3cret", "HF_TOKEN": "s3cret"})

    assert dict(found.attributes) == {**RANK, **attributes}


def test_node_that_a_launcher_has_covered_is_not_told() -> None:
    """MPICH and Intel MPI give every rank the environment of the first node, and with it that one's name."""
    found = rank_resource(IDENTITY, {**SLURM, "MPI_LOCALRANKID": "0", "PMI_RANK": "3"})

    elsewhere = {attribute: value for attribute, value in IN_SLURM.items() if attribute != "slurm.node.name"}
    assert dict(found.attributes) == {**RANK, **elsewhere}


def test_rank_says_itself_where_it_ran() -> None:
    """A relay of a DaemonSet stands in another pod, and a replay on a login node."""
    of_rank = place_of({**POD, "OTEL_SERVICE_NAME": "llama", "OTEL_RESOURCE_ATTRIBUTES": "team=a%20b"})
    of_relay = {"POD_NAME": "relay-x", "K8S_CLUSTER_NAME": "eu-1", "OTEL_RESOURCE_ATTRIBUTES": "team=x,env=prod"}

    found = rank_resource(IDENTITY, of_relay, of_rank)

    more = {"service.name": "llama", "k8s.cluster.name": "eu-1", "team": "a b", "env": "prod"}
    assert dict(found.attributes) == {**RANK, **IN_POD, **more}


def test_what_a_recording_claims_makes_no_other_rank() -> None:
    """It comes from a file: rank and run are the identity's to say."""
    found = rank_resource(IDENTITY, {}, {"training.rank": "0", "service.instance.id": "all"})

    assert dict(found.attributes) == RANK


def test_hashed_resource_equals_its_kind() -> None:
    """The encoder groups spans by it: two that are equal must be one group."""
    attributes: dict[str, str | int] = {"service.name": "a", "training.rank": 1}

    hashed = HashedResource(attributes, "https://s")

    assert hashed == HashedResource(attributes, "https://s")
    assert hash(hashed) == hash(HashedResource(attributes, "https://s"))
    assert hashed == Resource(attributes, "https://s")
    assert hashed != HashedResource(attributes)
