"""docker-compose.yml starts what the other tests here have tried: same configurations, same options."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.backends import stack as stacks

COMPOSE = Path(__file__).resolve().parents[2] / "docker-compose.yml"


def _service(name: str) -> str:
    """The lines of one service."""
    found = re.search(rf"^  {name}:\n((?:    .*\n|\n)+)", COMPOSE.read_text(), re.MULTILINE)
    assert found
    return found[1]


def test_prometheus_gets_the_options_that_were_tried(repository: Path) -> None:
    """Without its OTLP receiver Prometheus refuses every metric, and only the collector's log would say so."""
    stack = (repository / "scripts" / "backends.d" / "stack.py").read_text()
    tried = set(re.findall(r'"(--(?:web\.enable|enable)[^"]*)"', stack))

    shipped = set(re.findall(r"- (--(?:web\.enable|enable).*)", _service("prometheus")))

    assert tried == shipped != set()


@pytest.mark.parametrize(("service", "configuration"), [("collector", "laptop"), ("jaeger", "jaeger")])
def test_every_variable_is_one_that_the_configuration_reads(repository: Path, service: str, configuration: str) -> None:
    """A misspelled variable changes nothing and says nothing: the port would stay on the container's loopback."""
    text = (repository / "collector-config" / f"{configuration}.yaml").read_text()
    read = set(re.findall(r"\$\{env:(\w+)", text))

    given = set(re.findall(r"^      ([A-Z_]+): ", _service(service), re.MULTILINE))

    assert given
    assert given <= read


def test_nothing_is_reachable_from_outside_the_machine() -> None:
    """Nothing of the stack asks for a password."""
    ports = re.findall(r"^      - (\S+:\d+)$", COMPOSE.read_text(), re.MULTILINE)

    assert len(ports) >= 5
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_every_image_is_pinned() -> None:
    """`latest` is another program every month, and nobody would have tried it."""
    images = re.findall(r"image: (?:&\w+ )?([^*\s]\S+)", COMPOSE.read_text())

    assert len(images) >= 5
    assert [image for image in images if not re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+\S*", image)] == []


def test_every_image_is_the_same_wherever_it_is_named(repository: Path) -> None:
    """A page that is left behind at the next upgrade shows what nobody tries any more."""
    pinned = dict(re.findall(r"image: (?:&\w+ )?([\w./-]+):(\S+)", COMPOSE.read_text()))
    pages = [*repository.glob("docs/**/*.*"), *repository.glob("src/trainspan/cli/*.py"), repository / "README.md"]

    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    named = [(name, tag) for name in pinned for tag in re.findall(rf"{re.escape(name)}:(v?\d[\w.-]*)", text)]

    assert len(named) >= 2
    assert [(name, tag) for name, tag in named if pinned[name] != tag] == []


def test_every_file_that_is_mounted_exists(repository: Path) -> None:
    """Docker makes an empty directory of what does not exist, and the service finds no configuration in it."""
    mounted = re.findall(r"^      - \./(\S+?):/", COMPOSE.read_text(), re.MULTILINE)

    assert len(mounted) >= 5
    assert [path for path in mounted if not (repository / path).exists()] == []


def test_every_service_is_waited_for() -> None:
    """`up --wait` returns when all are healthy: one without a check would be taken for ready at once."""
    services = {name: service for name, service in _services().items() if "profiles" not in service}

    checked = {name for name, service in services.items() if "healthcheck" in service}

    # The Collector's image cannot ask itself.
    assert services.keys() - checked == {"collector"}
    assert services["collector-health"]["healthcheck"]["test"][-1] == "http://collector:13133/"


def test_who_writes_to_a_new_volume_may() -> None:
    """A new volume belongs to root; images that run as another user and bring no directory of their own cannot write.

    Prometheus and Grafana bring theirs, and Docker copies its owner.
    """
    writers = {
        name: (service.get("user"), service.get("cap_drop"))
        for name, service in _services().items()
        for volume in service.get("volumes", [])
        if volume.partition(":")[0] in yaml.safe_load(COMPOSE.read_text())["volumes"]
    }

    as_root = ("0:0", ["ALL"])
    assert writers == {"collector": as_root, "jaeger": as_root, "prometheus": (None, None), "grafana": (None, None)}


def test_services_call_each_other_by_their_names(repository: Path) -> None:
    """Inside a container loopback is the container's own."""
    grafana = repository / "collector-config" / "grafana" / "datasources" / "trainspan.yaml"
    text = grafana.read_text() + str(_services()["collector"]["environment"])

    called = set(re.findall(r"([a-z-]+):(\d{4,5})", text))

    assert called == {("jaeger", "4317"), ("jaeger", "16686"), ("prometheus", "9090")}


@pytest.mark.backends("that Docker Compose understands docker-compose.yml")
def test_docker_compose_understands_the_file(tmp_path: Path) -> None:
    """Its own library is the judge: schema, variables, and what one service says of another."""
    compose = stacks.status(tmp_path)["binaries"]["compose"]

    understood = _judged(compose, COMPOSE)
    broken = tmp_path / "docker-compose.yml"
    broken.write_text(COMPOSE.read_text().replace("jaeger: {condition", "jeager: {condition"))
    refused = _judged(compose, broken)

    assert (understood.returncode, understood.stderr) == (0, "")
    assert refused.returncode == 1
    assert "jeager" in refused.stderr


def _judged(compose: str, file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([compose, file, "nvidia"], capture_output=True, text=True, check=False)


def _services() -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
    return services
