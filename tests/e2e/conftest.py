"""Fixtures of the end-to-end tests."""

import gzip
import shutil

import pytest

from harness import FLIGHTS, Server
from object_store import ObjectStore


@pytest.fixture(scope="session")
def flights_csv(tmp_path_factory):
    """The shipped flights, unpacked."""
    path = tmp_path_factory.mktemp("flights") / "flights.csv"
    with gzip.open(FLIGHTS) as packed, open(path, "wb") as out:
        shutil.copyfileobj(packed, out)
    return path


@pytest.fixture(scope="session")
def object_store():
    """An S3 server with a bucket; tests take prefixes of their own."""
    with ObjectStore() as store:
        yield store


@pytest.fixture
def server(tmp_path):
    """A server over an empty data directory."""
    with Server(tmp_path / "data") as server:
        yield server


@pytest.fixture
def start(tmp_path):
    """Starts servers with settings of their own; all end with the test."""
    servers = []

    def start(name="data", **options):
        servers.append(Server(tmp_path / name, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()
