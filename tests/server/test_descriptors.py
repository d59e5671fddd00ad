"""The limit of open files is raised as far as it may be, and what it leaves bounds the connections."""

import resource
import subprocess
import sys
from pathlib import Path

from configs.serve import HttpConfig, ModelConfig, ServeConfig
from server.descriptors import OWN, connections_at_once
from tests.server.tables import each_of

REPO = Path(__file__).resolve().parents[2]
RAISES = """
import resource
from server.descriptors import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))
print(raise_descriptor_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_it_is_raised_to_the_hard_limit() -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 300
    done = subprocess.run([sys.executable, "-c", RAISES], cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["300", "300", "300"]


@each_of(
    ("asked", "descriptors", "most"), [(8192, 1 << 20, 8192), (8192, 1024, 1024 - OWN - 6), (50, 1024, 50), (8, 10, 1)]
)
def test_connections_leave_room_for_what_the_server_opens_itself(asked: int, descriptors: int, most: int) -> None:
    config = ServeConfig(
        model=ModelConfig(path=Path("/models/tiny"), served_name="tiny"),
        http=HttpConfig(max_connections=asked),
        workers=2,
    )
    assert connections_at_once(config, descriptors) == most
