"""Harbor trials as agents (``HarborAgent``, ``TaskFolders``), and a sandbox (``Bubblewrap``).

See ``docs/harbor.md``.
"""

from importlib.util import find_spec

from evert.bridge.errors import MissingPackageError

if find_spec("harbor") is None or find_spec("harbor.trial") is None:
    raise MissingPackageError(
        "evert.harbor needs the harbor package (0.25), which is not installed. Harbor requires "
        "Python 3.12, so install it together with evert in a separate environment.",
        name="harbor",
    )

from evert.trainers.integrations.harbor.agent import HarborAgent as HarborAgent
from evert.trainers.integrations.harbor.agent import TrialError as TrialError
from evert.trainers.integrations.harbor.bubblewrap import Bubblewrap as Bubblewrap
from evert.trainers.integrations.harbor.folders import TaskFolders as TaskFolders

__all__ = ["Bubblewrap", "HarborAgent", "TaskFolders", "TrialError"]
