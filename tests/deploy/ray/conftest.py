"""One cluster for all tests of the service: whoever kills something waits until it is whole again."""

import os
from collections.abc import Iterator

import pytest

from tests.deploy.ray.cluster import Cluster, cluster_in
from tests.e2e.running import until


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What changes the number of replicas comes first, and makes the two of the other tests."""

    def later(item: pytest.Item) -> bool:
        fixtures: list[str] = getattr(item, "fixturenames", [])
        return "service" not in fixtures or "cluster" in fixtures

    items.sort(key=later)


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With one replica at first."""
    with cluster_in(tmp_path_factory.mktemp("r")) as cluster:
        yield cluster
    left = [name for name in os.listdir("/dev/shm") if name.startswith("pixelferry")]
    assert left == [], "what a replica had in shared memory is gone with it"


@pytest.fixture
def cluster(service: Cluster) -> Cluster:
    """With two replicas."""
    if len(service.servers()) != 2:
        service.deploy(2)
    until("both replicas answer", service.whole, 240, 0.5)
    return service
