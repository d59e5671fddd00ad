"""What a wheel installs: this package alone, with the rooms of the tree in it.

`pixelferry serve` and `python -m pixelferry` run the server. `from pixelferry.shm import create_shm` is for other
programs: it touches neither `sys.path` nor any name outside this package.
"""

from pathlib import Path

_HERE = Path(__file__).resolve().parent
ROOT = _HERE if (_HERE / "server").is_dir() else _HERE.parent  # where the rooms lie: in a checkout beside this folder
__path__ = [str(_HERE), str(ROOT)]
