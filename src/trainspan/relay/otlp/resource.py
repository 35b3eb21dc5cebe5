"""What identifies whose telemetry it is: one resource per rank, and one per node for what belongs to no rank.

Later wins: what is detected (host, process, scheduler), then `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME`, then
what the rank recorded of its own place, then what makes a rank this rank. A resource attribute given for the whole job
cannot merge the series of its ranks, and a relay in another pod does not put its own name on them.

The environment is read by allow-list (law 8), and the command line not at all.
"""

from collections.abc import Mapping

from opentelemetry.sdk.resources import Attributes, Resource
from opentelemetry.sdk.version import __version__ as sdk_version
from opentelemetry.util.types import AttributeValue

from trainspan import __version__, names
from trainspan.identity import Identity
from trainspan.placement import attributes_given, scheduler_attributes

DEFAULT_SERVICE_NAME = "trainspan"
"""`service.name` when the user gives none.

Jaeger lists services, Prometheus makes it the `job` label, and both want few of them. A run's id differs with every
run, so it is an attribute. The job's name at the scheduler is one too: it is often `bash` or ends in a hash.
"""


class HashedResource(Resource):
    """A resource that computes its hash once.

    The SDK's encoder looks up the resource of every span in a dict, and `Resource.__hash__` writes all attributes as
    JSON each time: 4 µs a span with the attributes of a rank.
    """

    def __init__(self, attributes: Attributes, schema_url: str | None = None):
        super().__init__(attributes, schema_url)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or super().__eq__(other)


def rank_resource(
    identity: Identity, environ: Mapping[str, str], recorded: Mapping[str, str] | None = None
) -> HashedResource:
    """The resource of everything one rank sends.

    `service.instance.id` names the rank and not the process, so that its series go on over a restart.

    Args:
        identity: of the recorded process.
        environ: the environment, read by allow-list.
        recorded: what the rank wrote of its place; None where this is the rank's own environment.
    """
    return _resource(
        environ,
        recorded or {},
        detected={"host.name": identity.host, "process.pid": identity.pid},
        own={
            "service.instance.id": f"{identity.run}-rank{identity.rank}",
            names.RUN_ID: identity.run,
            names.ATTEMPT: identity.attempt,
            names.RANK: identity.rank,
            names.LOCAL_RANK: identity.local_rank,
            names.NODE_RANK: identity.node_rank,
            names.WORLD_SIZE: identity.world_size,
        },
    )


def node_resource(
    run: str,
    attempt: int,
    node_rank: int | None,
    host: str,
    environ: Mapping[str, str],
    recorded: Mapping[str, str] | None = None,
    *,
    rank_beside: int | None = None,
) -> HashedResource:
    """The resource of what a node sends for itself: its GPUs, its host, its launcher, the relay's own health.

    Args:
        run: the run's id.
        attempt: number of this incarnation of the run.
        node_rank: rank of the node in the job; None as long as it has met no other, and has no rank.
        host: name of the host.
        environ: the environment, read by allow-list.
        recorded: what the launcher wrote of its place; None for what the relay itself says.
        rank_beside: a rank of the relay that speaks, where the node's relay is another one; None: it is that one.
    """
    place = host if node_rank is None else f"node{node_rank}"
    return _resource(
        environ,
        recorded or {},
        detected={"host.name": host},
        own={
            "service.instance.id": f"{run}-{place}" + ("" if rank_beside is None else f"-rank{rank_beside}"),
            names.RUN_ID: run,
            names.ATTEMPT: attempt,
            **({} if node_rank is None else {names.NODE_RANK: node_rank}),
        },
    )


def _resource(
    environ: Mapping[str, str], recorded: Mapping[str, str], detected: Attributes, own: Attributes
) -> HashedResource:
    attributes: dict[str, AttributeValue] = {
        "telemetry.sdk.language": "python",
        "telemetry.sdk.name": "opentelemetry",
        "telemetry.sdk.version": sdk_version,
        "telemetry.distro.name": "trainspan",
        "telemetry.distro.version": __version__,
        **scheduler_attributes(environ),
        **detected,
        **attributes_given(environ),
        **recorded,
        "service.name": service_name(environ, recorded),
        **own,
    }
    return HashedResource({key: _encodable(value) for key, value in attributes.items()})


def _encodable(value: AttributeValue) -> AttributeValue:
    """`value` as it can be sent: in a variable that is no UTF-8, Python has surrogates for what it cannot decode."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def service_name(environ: Mapping[str, str], recorded: Mapping[str, str]) -> str:
    """The name of the service: as the process that recorded was told, else as we are."""
    names_given = (
        recorded.get("service.name"),
        environ.get("OTEL_SERVICE_NAME"),
        attributes_given(environ).get("service.name"),
    )
    return next((name for name in names_given if name), DEFAULT_SERVICE_NAME)
