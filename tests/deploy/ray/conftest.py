"""One cluster for all tests of the service: whoever kills something waits until it is whole again."""

import os
from collections.abc import Iterator

import pytest

from tests.deploy.ray.cluster import Cluster, cluster_in


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_in(tmp_path_factory.mktemp("r")) as cluster:
        yield cluster
    left = [name for name in os.listdir("/dev/shm") if name.startswith("pixelferry")]
    assert left == [], "what a replica had in shared memory is gone with it"
