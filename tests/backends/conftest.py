"""The stack that tests of the real backends share."""

from collections.abc import Iterator

import pytest

from tests.backends import stack as stacks


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stacks.Stack]:
    """Collector, Jaeger and Prometheus as shipped; one stack for all tests, each of which uses runs of its own."""
    folder = tmp_path_factory.mktemp("stack")
    try:
        yield stacks.up(folder)
    finally:
        stacks.run("down", folder)


@pytest.fixture(scope="session")
def tls_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stacks.Stack]:
    """The same over mutual TLS, with certificates in its folder's `tls`."""
    folder = tmp_path_factory.mktemp("tls-stack")
    try:
        yield stacks.up(folder, "--mtls")
    finally:
        stacks.run("down", folder)
