"""What would be exported where, and what each endpoint says to an empty export."""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias

from trainspan.cli.checks.finding import Finding, State
from trainspan.errors import SettingError
from trainspan.relay.otlp.destinations import Destination, Signal, destinations
from trainspan.relay.otlp.reach import CERTIFICATES, Answer, Verdict, ask

AREA: Final = "export"
TIMEOUT_S: Final = 3.0

_Asked: TypeAlias = tuple[Destination, Answer | None]

_SAID: Final[Mapping[Verdict, str]] = {
    "accepted": "reachable, and takes them",
    "rejected": "it rejects an empty export",
    "refused": "nothing listens there",
    "silent": f"no answer within {TIMEOUT_S:g} s",
    "dns": "no such host",
    "tls": "the TLS handshake failed",
    "unauthorized": "it refuses our credentials",
    "not_found": "it has nothing for {signal} at this address",
    "unavailable": "it is up, but takes nothing just now",
    "not_otlp": "what answers there does not speak OTLP over {protocol}",
    "misconfigured": "it cannot be used",
    **{verdict: said for verdict, (said, _) in CERTIFICATES.items()},
}

_PORTS: Final = "port 4318 is http/protobuf, port 4317 is grpc"
_ADVICE: Final[Mapping[Verdict, str]] = {
    "rejected": "some backends do; whether it takes real ones, a run shows: trainspan demo, then trainspan replay",
    "refused": f"start the Collector there, or correct OTEL_EXPORTER_OTLP_ENDPOINT ({_PORTS})",
    "silent": f"a firewall may drop the packets, or the port speaks another protocol ({_PORTS})",
    "dns": "correct the host name in OTEL_EXPORTER_OTLP_ENDPOINT",
    "tls": "use http:// where the endpoint has no TLS; name a private CA with OTEL_EXPORTER_OTLP_CERTIFICATE",
    "unauthorized": "give the token: OTEL_EXPORTER_OTLP_HEADERS='authorization=Bearer%20...'",
    "not_found": (
        "check the path: OTEL_EXPORTER_OTLP_ENDPOINT gets /v1/{signal} appended, OTEL_EXPORTER_OTLP_{SIGNAL}_ENDPOINT "
        "is used as it is; for a backend without {signal} (Jaeger takes traces alone): OTEL_{SIGNAL}_EXPORTER=none"
    ),
    "unavailable": "look at its log; what is recorded waits on disk, and is sent when it answers",
    "not_otlp": f"check the port and OTEL_EXPORTER_OTLP_PROTOCOL ({_PORTS})",
    "misconfigured": "correct the OTEL_EXPORTER_OTLP_* variable",
    **{verdict: advice for verdict, (_, advice) in CERTIFICATES.items()},
}


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Where every signal goes; endpoints are asked at the same time."""
    try:
        found = list(destinations(environ).values())
    except SettingError as error:
        yield Finding(AREA, "problem", str(error))
        return
    with ThreadPoolExecutor(max_workers=len(found)) as pool:
        answers = pool.map(_answer_of, found)
        for group in _grouped(zip(found, answers, strict=True)):
            yield _finding([where.signal for where, _ in group], *group[0])


def _answer_of(where: Destination) -> Answer | None:
    return ask(where, min(TIMEOUT_S, where.timeout_s)) if where.kind == "otlp" else None


def _grouped(asked: Iterable[_Asked]) -> list[list[_Asked]]:
    """What was asked, with those together that are refused over the same certificate: one cause, one finding."""
    groups: dict[object, list[_Asked]] = {}
    for where, answer in asked:
        shared = answer is not None and answer.verdict in CERTIFICATES
        groups.setdefault((where.place, where.protocol, answer) if shared else where.signal, []).append((where, answer))
    return list(groups.values())


def _finding(signals: list[Signal], where: Destination, answer: Answer | None) -> Finding:
    signal = ", ".join(signals)
    facts: dict[str, object] = {"signal": signal, "kind": where.kind}
    if answer is None:
        said = {
            "folder": "stay in the run folder (OTEL_EXPORTER_OTLP_ENDPOINT is not set)",
            "console": "go to the relay's log in the run folder",
            "none": "are switched off (OTEL_SDK_DISABLED or OTEL_*_EXPORTER=none)",
        }
        return Finding(AREA, "note" if where.kind == "none" else "ok", f"{signal} {said[where.kind]}", facts=facts)
    facts |= {
        "endpoint": where.place,
        "protocol": where.protocol,
        # Names alone: the values are the secrets.
        "headers": sorted(where.headers),
        "verdict": answer.verdict,
        "seen": answer.seen,
    }
    names = {"signal": signal, "SIGNAL": signal.upper(), "protocol": where.protocol}
    headers = f", headers {', '.join(sorted(where.headers))}" if where.headers else ""
    said_of = _SAID[answer.verdict].format(**names)
    text = f"{signal} to {where.place} ({where.protocol}{headers}): {said_of}"
    if answer.verdict == "accepted":
        return Finding(AREA, "ok", text, facts=facts)
    state: State = "note" if answer.verdict == "rejected" else "problem"
    return Finding(AREA, state, f"{text} ({answer.seen})", _ADVICE[answer.verdict].format(**names), facts=facts)
