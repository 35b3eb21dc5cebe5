"""Who ranks are by what real launchers gave them: Open MPI, MPICH, Intel MPI and Slurm, each over several hosts."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from trainspan import mpirun, settings
from trainspan.identity import Identity, identify, is_named, is_new
from trainspan.role import Role

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "launchers" / "environments.json").read_text("utf-8"))


class Launch(NamedTuple):
    """Of each rank: its host, its environment, and who it takes itself for."""

    hosts: list[str]
    environs: list[dict[str, str]]
    ranks: list[Identity]


def launch_of(name: str, **more: str) -> Launch:
    """A recorded one, with `more` in the environment of every rank."""
    recorded = RECORDED[name]
    environs = [{**recorded["all"], **rank["environ"], **more} for rank in recorded["ranks"]]
    ranks = [identify(settings.load(environ)[0], environ, Role.RANK) for environ in environs]
    return Launch([rank["host"] for rank in recorded["ranks"]], environs, ranks)


def runs_of(launch: Launch) -> set[tuple[str, str]]:
    """(run, who named it)."""
    return {(rank.run, rank.launcher) for rank in launch.ranks}


OF_SEVERAL = [name for name, recorded in RECORDED.items() if len(recorded["ranks"]) > 1]
LASTING = [name for name in RECORDED if name.startswith(("openmpi-4", "intelmpi"))]
PASSING = ["openmpi-5.0.11", "mpich-4.0.2", "mpich-5.0.2"]


@pytest.mark.parametrize("name", OF_SEVERAL)
def test_rank_has_its_place(name: str) -> None:
    """Whichever way its launcher fills the hosts, and however many ranks each has."""
    launch = launch_of(name)

    places = [(one.rank, one.world_size, one.local_rank, one.local_world_size) for one in launch.ranks]
    on_host = [launch.hosts[:number].count(host) for number, host in enumerate(launch.hosts)]
    size_of_host = [launch.hosts.count(host) for host in launch.hosts]
    everyone = range(len(launch.hosts))
    assert places == [(rank, len(launch.hosts), on_host[rank], size_of_host[rank]) for rank in everyone]


@pytest.mark.parametrize("name", OF_SEVERAL)
def test_hosts_have_different_numbers(name: str) -> None:
    """Files and metrics of a node are named after its number."""
    launch = launch_of(name)

    numbers = {(host, rank.node_rank) for host, rank in zip(launch.hosts, launch.ranks, strict=True)}

    assert len(numbers) == len({host for host, _ in numbers}) == len({number for _, number in numbers})


@pytest.mark.parametrize("name", LASTING)
def test_hosts_of_an_mpirun_are_one_run(name: str) -> None:
    """Only rank and size differ between what Open MPI 4 and Intel MPI tell on one host and on another."""
    [(run, launcher)] = runs_of(launch_of(name))

    assert (run[:7], launcher) == ("mpirun-", "mpirun")
    assert len(run) == len("mpirun-") + 16


def test_every_mpirun_is_another_run() -> None:
    """The same command, again on the same hosts."""
    runs = [runs_of(launch_of(name)).pop() for name in LASTING]

    assert len(set(runs)) == len(LASTING)


@pytest.mark.parametrize("name", PASSING)
def test_number_of_a_process_names_no_run(name: str) -> None:
    """Open MPI 5 tells a host and a process number, MPICH not even that: tomorrow another job can have the same."""
    launch = launch_of(name)

    assert {rank.launcher for rank in launch.ranks} == {"process"}
    assert {mpirun.key_of(environ, lasting=True) for environ in launch.environs} == {None}


def test_ranks_of_an_mpirun_that_lives_know_each_other() -> None:
    """Where a script of its own starts each rank, they have no parent in common."""
    keys = {mpirun.key_of(environ, lasting=False) for environ in launch_of("openmpi-5.0.11").environs}

    assert len(keys) == 1
    assert keys != {None}


def test_key_of_the_network_stays_where_it_is() -> None:
    """Whoever has it could join the job's traffic; a run's name goes everywhere."""
    launch = launch_of("openmpi-4.1.4")

    key = launch.environs[0]["OMPI_MCA_orte_precondition_transports"]

    assert not any(half in launch.ranks[0].run for half in key.split("-"))


@pytest.mark.parametrize(
    ("more", "run"),
    [
        ({"TRAINSPAN_RUN_ID": "mine"}, ("mine", "user")),
        ({"TORCHELASTIC_RUN_ID": "bert"}, ("bert", "torchrun")),
        ({"KUBEFLOW_TRAINING_JOB_ID": "job"}, ("job", "kubeflow")),
    ],
)
def test_name_that_somebody_gave_comes_before_that_of_the_mpirun(more: dict[str, str], run: tuple[str, str]) -> None:
    """It is meant, and lasts over restarts."""
    assert runs_of(launch_of("openmpi-4.1.4", **more)) == {run}


def test_mpirun_below_a_command_has_its_own_name() -> None:
    """Open MPI takes the variables of `trainspan run` to no other host."""
    assert runs_of(launch_of("openmpi-4.1.4", TRAINSPAN_LAUNCH_ID="command")) == runs_of(launch_of("openmpi-4.1.4"))


def test_torchrun_below_an_mpirun_has_its_name() -> None:
    """Without a rendezvous id the agents of all hosts would each find one."""
    launch = launch_of("openmpi-4.1.4", TORCHELASTIC_RUN_ID="none", TRAINSPAN_LAUNCH_ID="of-this-agent")

    assert runs_of(launch) == runs_of(launch_of("openmpi-4.1.4"))
    assert all(map(is_named, launch.ranks, launch.environs))


def test_sweep_below_an_mpirun_is_no_one_job() -> None:
    """`mpirun sh -c 'python a.py; python b.py'`: both trainings have inherited the name, which is new every time."""
    launch = launch_of("openmpi-4.1.4")

    assert not any(map(is_named, launch.ranks, launch.environs))
    assert all(map(is_new, launch.ranks))


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("slurm-22.05-batch", "12"),
        ("slurm-22.05-srun", "12.0"),
        ("slurm-22.05-srun-pmi2", "12.1"),
        ("slurm-22.05-openmpi-4.1.4", "12"),
        ("slurm-22.05-openmpi-5.0.11", "12"),
        ("slurm-22.05-mpich-4.0.2", "12.4"),
        ("slurm-22.05-intelmpi-2021.18", "12.5"),
        ("slurm-22.05-srun-alone", "13.0"),
    ],
)
def test_job_of_slurm_is_one_run_however_its_ranks_are_started(name: str, run: str) -> None:
    """Open MPI's daemons are a step on all nodes but the one where the batch script runs; their ranks are no tasks."""
    assert runs_of(launch_of(name)) == {(run, "slurm")}


@pytest.mark.parametrize("version", ["4.1.4", "5.0.11"])
def test_mpirun_on_some_nodes_of_a_job_is_a_run_of_its_own(version: str) -> None:
    """Another may run on the rest at the same time, with ranks of the same numbers."""
    [(run, launcher)] = runs_of(launch_of(f"slurm-22.05-openmpi-{version}-part"))

    assert (run[:3], launcher) == ("13.", "slurm")
    assert len(run) == len("13.") + 16


@pytest.mark.parametrize(
    ("more", "run"),
    [
        ({"OMPI_UNIVERSE_SIZE": "2"}, "12.1c3c2d3ffbab7166"),
        ({"OMPI_UNIVERSE_SIZE": "2", "SLURM_JOB_NUM_NODES": "1"}, "12"),
    ],
)
def test_mpirun_that_may_have_all_nodes_of_a_job(more: dict[str, str], run: str) -> None:
    """Open MPI 5 does not say how many it has, and a job may have asked for less than it starts."""
    assert runs_of(launch_of("slurm-22.05-openmpi-5.0.11", **more)) == {(run, "slurm")}


@pytest.mark.parametrize("uri", ["", "x", ".", ";", "job.", "job.x;tcp", "job.²;tcp", f"job.{'9' * 20};tcp"])
def test_daemon_that_is_no_number_is_passed_over(uri: str) -> None:
    """An environment may hold anything; nothing may be raised."""
    environ = {"OMPI_COMM_WORLD_RANK": "3", "PMIX_SERVER_URI2": uri, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}

    assert mpirun.node_of(environ) is None
    assert identify(settings.load(environ)[0], environ, Role.RANK).node_rank == 1
