"""What a process started here would take itself for: which run, which rank, by whose word."""

from collections.abc import Iterator, Mapping
from typing import Final

from trainspan import identity
from trainspan.cli.checks.finding import Finding
from trainspan.recording import attempts, places
from trainspan.role import Role
from trainspan.settings import Settings, state_dir

AREA: Final = "job"

_SEEN_BY: Final = {
    "user": "TRAINSPAN_RUN_ID",
    "ray": "Ray",
    "torchrun": "torchrun",
    "kubeflow": "Kubeflow",
    "slurm": "Slurm",
    "mpirun": "mpirun",
    "trainspan": "trainspan run",
}


def check(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Who launches here, and whether recording is on."""
    yield _switch(settings)
    who = identity.identify(settings, environ, Role.RANK)
    launch = attempts.launch_together(who, settings, environ)
    if launch is not None or attempts.is_open(who, settings, environ):
        folder = places.run_folder(state_dir(settings, environ), who.run)
        who = who._replace(attempt=max(who.attempt, attempts.next_of(folder, launch)))
    by = _SEEN_BY.get(who.launcher)
    facts = {"launcher": who.launcher, "run": who.run if by else None, "rank": who.rank, "world_size": who.world_size}
    if by:
        text = f"{by} gives run {who.run}, attempt {who.attempt}, rank {who.rank} of {who.world_size}"
        yield Finding(AREA, "ok", text, facts=facts)
    elif who.world_size > 1:
        yield Finding(
            AREA,
            "note",
            f"this is rank {who.rank} of {who.world_size}, but nobody gives the run an id",
            "set the same TRAINSPAN_RUN_ID on all ranks; without one those of each host are a run of their own",
            facts=facts,
        )
    elif "KUBERNETES_SERVICE_HOST" in environ:
        yield Finding(
            AREA,
            "note",
            "Kubernetes, and nobody gives the run an id",
            "set TRAINSPAN_RUN_ID, to the Job's name for one: all pods and restarts of the run then share it",
            facts=facts,
        )
    else:
        yield Finding(AREA, "ok", "no launcher and no scheduler seen: one process alone", facts=facts)


def _switch(settings: Settings) -> Finding:
    facts = {"enabled": settings.enabled, "relay": settings.relay}
    if settings.enabled and settings.relay == "off":
        return Finding(
            AREA, "note", "recording is on, the relay is off", "deliver a run with: trainspan replay RUN", facts=facts
        )
    if settings.enabled:
        return Finding(AREA, "ok", f"recording is on (relay: {settings.relay})", facts=facts)
    return Finding(
        AREA,
        "ok",
        "recording is off here; `trainspan run -- CMD` switches it on for CMD, TRAINSPAN_ENABLED=1 for everything",
        facts=facts,
    )
