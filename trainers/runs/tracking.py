"""Where a run is recorded besides its folder: Weights & Biases, TensorBoard.

    wandb_project=NAME   a run of that project (``wandb_run.py``)
    tensorboard=True     event files in RUN/tensorboard (``tensorboard_log.py``)

``check_tracking`` finds a missing package before there is a run. ``tracking`` starts what the
settings ask for and ends it however the run ends; in between, a tracker is handed each line of
the run's ``metrics.jsonl`` and at last its result. Neither is needed: the folder has it all.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from rich.console import Console

from evert.bridge.errors import EvertError, MissingPackageError
from evert.trainers.runs.folder import RunFolder
from evert.trainers.runs.settings import TrainSettings

if TYPE_CHECKING:
    from tinker_cookbook.rl.train import Config


class TrackingError(EvertError, RuntimeError):
    """A tracker that a run asks for cannot be started."""


class Tracker(Protocol):
    """Records a run."""

    def begin(self, config: "Config") -> None:
        """The Cookbook is about to train by this configuration."""

    def row(self, metrics: Mapping[str, Any]) -> None:
        """A step was done: its line of ``metrics.jsonl``."""

    def result(self, result: Mapping[str, Any]) -> None:
        """The run is finished: its ``result.json``."""


class Trackers:
    """Several as one; none, as often as not."""

    def __init__(self, trackers: tuple[Tracker, ...]) -> None:
        self._trackers = trackers

    def begin(self, config: "Config") -> None:
        """Tell each of the configuration."""
        for tracker in self._trackers:
            tracker.begin(config)

    def row(self, metrics: Mapping[str, Any]) -> None:
        """Tell each of a step."""
        for tracker in self._trackers:
            tracker.row(metrics)

    def result(self, result: Mapping[str, Any]) -> None:
        """Tell each of the result."""
        for tracker in self._trackers:
            tracker.result(result)


def check_tracking(settings: TrainSettings) -> None:
    """Find out before the run that its trackers are installed.

    Raises:
        MissingPackageError: One is not; the message names the extra to install.
    """
    if settings.wandb_project:
        _need("wandb", f"wandb_project={settings.wandb_project}")
    if settings.tensorboard:
        _need("tensorboard", "tensorboard=True")


def _need(package: str, asked: str) -> None:
    try:
        found = find_spec(package) is not None
    except ValueError:  # blocked: None in sys.modules
        found = False
    if not found:
        raise MissingPackageError(
            f"{asked} needs the package {package}, which is not installed. Install it with "
            f"pip install 'evert[{package}]', or leave {asked.partition('=')[0]} out: the run's "
            "folder has all its metrics anyway."
        )


def wandb_hosts(settings: TrainSettings) -> tuple[str, ...]:
    """Hosts that the run's tracking has to reach; none where W&B is offline or not asked for."""
    if not settings.wandb_project:
        return ()
    import wandb

    # Of the environment and of W&B's own files. What it says goes to the run's log from here on.
    found = wandb.setup(wandb.Settings(silent=True)).settings
    host = urlsplit(found.base_url).hostname
    return (host,) if host and found.mode in ("online", "run", "shared") else ()


@contextmanager
def tracking(
    settings: TrainSettings,
    folder: RunFolder,
    about: Mapping[str, Any],
    console: Console,
) -> Iterator[Trackers]:
    """Start the trackers that the settings ask for; they are closed after the block.

    Args:
        settings: Of the run.
        folder: Its open folder.
        about: What ``run.json`` says: settings, versions, engine, machine.
        console: Where to say where the run can be seen.

    Raises:
        TrackingError: One cannot be started; the message says why.
    """
    with ExitStack() as open_trackers:
        trackers: list[Tracker] = []
        if settings.wandb_project:
            from evert.trainers.runs.wandb_run import wandb_run

            run = wandb_run(settings, folder, about, console)
            trackers.append(open_trackers.enter_context(run))
        if settings.tensorboard:
            from evert.trainers.runs.tensorboard_log import tensorboard_log

            log = tensorboard_log(settings, folder, about, console)
            trackers.append(open_trackers.enter_context(log))
        yield Trackers(tuple(trackers))
