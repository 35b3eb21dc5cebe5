"""Whose telemetry it is."""

from collections.abc import Mapping

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.version import __version__ as sdk_version

from trainspan import __version__
from trainspan.identity import Identity
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


def test_hashed_resource_equals_its_kind() -> None:
    """The encoder groups spans by it: two that are equal must be one group."""
    attributes: dict[str, str | int] = {"service.name": "a", "training.rank": 1}

    hashed = HashedResource(attributes, "https://s")

    assert hashed == HashedResource(attributes, "https://s")
    assert hash(hashed) == hash(HashedResource(attributes, "https://s"))
    assert hashed == Resource(attributes, "https://s")
    assert hashed != HashedResource(attributes)
