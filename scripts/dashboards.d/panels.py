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


MOST = 20
"""Lines of a panel that has one for each rank, node or GPU. 16,000 would stop the browser, and be read by nobody."""


def stat(title: str, description: str, expr: str, unit: str = "short", width: int = 4, legend: str = "") -> Panel:
    """One number, or one for each value of what `legend` names."""
    return Panel(title, "stat", description, (Query(expr, legend),), unit, width, 4)


def highest(series: str, by: str = "") -> str:
    """PromQL for a selector's series, or where they are many, those that were highest in the time shown.

    Chosen once for all the time: a line that comes and goes with its place among the others cannot be followed.
    """
    return f"{series} and topk{by} ({MOST}, max_over_time({series}[$__range] @ end()))"


def lowest(series: str) -> str:
    """The same of those that were lowest."""
    return f"{series} and bottomk ({MOST}, min_over_time({series}[$__range] @ end()))"


def growing(counter: str) -> str:
    """PromQL for the increase of a counter's series, or where they are many, of those that grew most."""
    return f"increase({counter}[$__rate_interval]) and topk ({MOST}, increase({counter}[$__range] @ end()))"
