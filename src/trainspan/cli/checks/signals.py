"""Which steps get a trace and how metrics are sent, by the standard variables; what of those is not in force."""

from collections.abc import Iterator, Mapping
from typing import Final

from trainspan.cli.checks.finding import Finding
from trainspan.otel_variables import metric_interval_from, temporality_complaint
from trainspan.relay.signals.metrics import histogram_kind_from
from trainspan.sampling import FIRST_STEPS, VARIABLE, Sampling, sampling_from

AREA: Final = "signals"


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
    """What a relay started here would do, and what it would complain of."""
    sampling, problems = sampling_from(environ)
    _, of_histograms = histogram_kind_from(environ)
    interval_ms, of_interval = metric_interval_from(environ)
    for problem in (*problems, *of_histograms, *of_interval):
        yield Finding(AREA, "problem", str(problem), facts=problem._asdict())
    yield _sampling(sampling)
    yield Finding(AREA, "ok", f"metrics every {interval_ms / 1000:g} s", facts={"metric_interval_ms": interval_ms})
    complaint = temporality_complaint(environ)
    if complaint is not None:
        yield Finding(AREA, "note", complaint)


def _sampling(sampling: Sampling) -> Finding:
    facts = {"sampler": sampling.name, "ratio": sampling.ratio, "every": sampling.every}
    if sampling.off:
        return Finding(AREA, "note", f"no traces, {VARIABLE}={sampling.name}", facts=facts)
    if sampling.name is not None:
        text = f"traces of {sampling.ratio:.6g} of the steps and of those that fail, {VARIABLE}={sampling.name}"
    elif sampling.every is not None:
        text = f"traces of every step that {sampling.every} divides, and of slow, straggling, failed and last ones"
    else:
        text = (
            f"traces of the first {FIRST_STEPS} steps of an attempt, {sampling.ratio:.6g} of the others, and of slow, "
            f"straggling, failed and last ones; {VARIABLE} would choose others"
        )
    return Finding(AREA, "ok", text, facts=facts)
