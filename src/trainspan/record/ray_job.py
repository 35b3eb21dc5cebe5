"""For which of Ray's jobs this process works: what its environment says of that is said too early, or too little."""

import os
import sys
from collections.abc import Mapping
from typing import Any, Final

from trainspan.identity import RAY_JOB, RAY_SESSION

_SESSION_OPTION: Final = "--session-name="


def environment() -> Mapping[str, str]:
    """The environment, with the job that Ray says it is, and the session of Ray it is in.

    Ray starts workers before it knows what for, and their environment says `ffffffff`. A job's number is one of its
    cluster, which begins anew with every cluster: the first job of each is `01000000`. Asks nobody: Ray knows it.
    """
    ray: Any = sys.modules.get("ray")
    if RAY_JOB not in os.environ or ray is None:
        return os.environ
    try:
        job = str(ray.get_runtime_context().get_job_id())
    except Exception:
        return os.environ  # no worker of Ray's, or of a Ray that says it in another way
    session = (word.removeprefix(_SESSION_OPTION) for word in sys.orig_argv if word.startswith(_SESSION_OPTION))
    return {**os.environ, RAY_JOB: job, RAY_SESSION: next(session, "")}
