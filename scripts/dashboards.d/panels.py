"""The words of a dashboard: panels, what they ask Prometheus and Jaeger for, and what they choose from."""

from collections.abc import Sequence
from typing import NamedTuple


class Query(NamedTuple):
    """PromQL and the legend of its series."""

    expr: str
    legend: str = ""


class Panel(NamedTuple):
    """One panel. `kind`: of Grafana's panels, or `traces`; `width` of 24 columns, `height` in rows of 30 pixels."""

    title: str
    kind: str
    description: str
    queries: Sequence[Query]
    unit: str = "short"
    width: int = 12
    height: int = 8
    stacked: bool = False
    maximum: float | None = None


class Dashboard(NamedTuple):
    """One dashboard; `variables` are names of VARIABLES."""

    uid: str
    title: str
    description: str
    variables: Sequence[str]
    panels: Sequence[Panel]
    since: str = "now-6h"


ONE_RUN = 'training_run_id="$run"'
ONE_GPU = f'{ONE_RUN},hw_type="gpu"'
GPU_NAME = "node {{training_node_rank}} {{hw_name}}"
ONE_RANK = 'training_run_id="$run",training_rank=~"$rank"'


class Variable(NamedTuple):
    """A choice at the top of a dashboard; `regex` keeps a part of each value."""

    label: str
    query: str
    description: str
    many: bool = False
    regex: str = ""
    hidden: bool = False


VARIABLES = {
    "run": Variable("run", "label_values(training_time_seconds_total, training_run_id)", "`training.run.id`"),
    "rank": Variable(
        "rank",
        f"label_values(training_time_seconds_total{{{ONE_RUN}}}, training_rank)",
        "Ranks to show; where ranks of a node share a histogram, choose All.",
        many=True,
    ),
    # `job` is `service.namespace/service.name`, Jaeger knows the name only.
    "service": Variable(
        "service",
        f"label_values(training_time_seconds_total{{{ONE_RUN}}}, job)",
        "`service.name`, for Jaeger",
        regex="/([^/]+)$/",
        hidden=True,
    ),
}


def stat(title: str, description: str, expr: str, unit: str = "short", width: int = 4) -> Panel:
    """One number."""
    return Panel(title, "stat", description, (Query(expr),), unit, width, 4)
