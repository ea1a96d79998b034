"""Log the Cookbook's metrics to Weights & Biases and TensorBoard.

    wandb_project=NAME   creates a run in that project; its id is stored in ``wandb.json``
    tensorboard=True     writes event files to RUN/tensorboard: ``tensorboard --logdir runs``

We don't use the Cookbook's own W&B logger, because it doesn't support tags, resuming a run, or
final scores. Both trackers receive the rows from ``follow``. W&B's environment variables work as
usual.
"""

import io
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from tinker_cookbook.utils import ml_log

from evert.bridge.errors import EvertError, MissingPackageError
from evert.bridge.redaction import redacted_arguments
from evert.trainers.config.train import TrainSettings
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.rundir.metrics import HELD_OUT_REWARD
from evert.trainers.system.files import WANDB, slug
from evert.trainers.training.progress import OnRow

EVENTS = "tensorboard"


@contextmanager
def follow(on_row: OnRow) -> Iterator[None]:
    """Call ``on_row`` with each row of metrics that the Cookbook logs inside the block.

    The Cookbook's training loops create their own logger and don't accept one. We add ours to it,
    and remove the console handler, because ``logs.log`` contains the same messages.
    """
    module: Any = ml_log
    make = module.setup_logging

    def setup_logging(*args: Any, **kwargs: Any) -> ml_log.MultiplexLogger:
        with redirect_stderr(io.StringIO()) as nowhere:
            logger: ml_log.MultiplexLogger = make(*args, **kwargs)
        root = logging.getLogger()
        root.handlers[:] = [h for h in root.handlers if getattr(h, "stream", None) is not nowhere]
        logger.loggers.append(_Rows(on_row))
        return logger

    module.setup_logging = setup_logging
    try:
        yield
    finally:
        module.setup_logging = make


class _Rows(ml_log.Logger):
    def __init__(self, on_row: OnRow) -> None:
        self._on_row = on_row

    def log_hparams(self, config: Any) -> None:
        pass

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self._on_row(metrics if step is None else {"step": step, **metrics})


class TrackingError(EvertError, RuntimeError):
    """A tracker could not be started."""


def check_tracking(settings: TrainSettings) -> None:
    """Check that the packages for all trackers are installed, before the run starts."""
    trackers = {"wandb": settings.wandb_project and f"wandb_project={settings.wandb_project}"}
    trackers["tensorboard"] = "tensorboard=True" if settings.tensorboard else None
    for package, setting in trackers.items():
        if setting and find_spec(package) is None:
            raise MissingPackageError(
                f"{setting} requires the {package} package, which is not installed. Install it "
                f"with pip install {package}, or leave out {setting.partition('=')[0]}: all "
                "metrics are also written to the run's folder."
            )


@contextmanager
def tracking(
    settings: TrainSettings, folder: RunFolder, about: Mapping[str, Any], console: Console
) -> Iterator[ml_log.Logger]:
    """Start all trackers that are enabled in the settings, and close them after the block.

    Yields a single logger for all trackers. Pass it the Cookbook's config, the metrics of each
    step, and finally the ``final_scores`` without a step.
    """
    with ExitStack() as closing:
        loggers: list[ml_log.Logger] = []
        if settings.wandb_project:
            loggers.append(WandbLogger(settings, folder, about))
            closing.push(_end_wandb)
        if settings.tensorboard:
            loggers.append(TensorboardLogger(folder, about))
            closing.callback(loggers[-1].close)
        for logger in loggers:
            console.print(logger.get_logger_url(), soft_wrap=True, markup=False)
        yield ml_log.MultiplexLogger(loggers)


def final_scores(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the held-out rewards in a ``result.json``: ``held_out/after/greedy`` and so on."""
    rewards = {
        f"held_out/{when}/{how}": score["reward"]
        for when, scores in result["held_out"].items()
        for how, score in (scores or {}).items()
    }
    if "held_out/after/temperature_1" in rewards:  # the last point of the held-out reward curve
        rewards[HELD_OUT_REWARD] = rewards["held_out/after/temperature_1"]
    return rewards


class WandbLogger(ml_log.Logger):
    """Logs to a W&B run. Resuming continues the same W&B run, using the id in the run's folder."""

    def __init__(
        self, settings: TrainSettings, folder: RunFolder, about: Mapping[str, Any]
    ) -> None:
        import wandb

        project = settings.wandb_project
        recorded = folder.read_json(WANDB) or {}
        try:
            run = wandb.init(
                project=project,
                name=run_name(settings, folder.path),
                id=recorded.get("id") if recorded.get("project") == project else None,
                resume="allow",
                tags=run_tags(settings),
                dir=str(folder.path),
                # don't capture the console, because we write our own logs.log
                settings=wandb.Settings(
                    console="off",
                    silent=True,
                    # the metadata includes the command line, which may contain secrets
                    x_disable_meta=redacted_arguments(sys.argv) != sys.argv,
                ),
            )
        except wandb.Error as error:
            raise TrackingError(
                f"Weights & Biases could not be started for wandb_project={project}: "
                f"{str(error).strip()} Log in with `wandb login` or set WANDB_API_KEY. To keep the "
                "run on disk and upload it later with `wandb sync`, set WANDB_MODE=offline. To "
                "disable W&B, leave out wandb_project."
            ) from error
        folder.write_json(WANDB, {"project": project, "id": run.id, "url": run.url})
        self._run = run
        self.log_hparams({"evert": dict(about)})

    def log_hparams(self, config: Any) -> None:
        """Write a config. If the run was resumed, its values replace the previous ones."""
        update: Any = self._run.config.update
        update(ml_log.dump_config(config), allow_val_change=True)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Log the metrics of a step. If there is no step, add the final scores to the summary."""
        if step is None:
            self._run.summary.update(metrics)
        else:
            self._run.log({k: v for k, v in metrics.items() if k != "step"}, step)

    def get_logger_url(self) -> str:
        """Return the run's URL, or the command to upload an offline run."""
        # Every resume creates another folder. All of them are uploaded to the same W&B run.
        path = Path(self._run.dir).parents[1] / f"offline-run-*-{self._run.id}"
        return f"wandb: {self._run.url or f'offline; to upload the run: wandb sync {path}'}"


def _end_wandb(kind: type[BaseException] | None, *_: object) -> None:
    """Wait until W&B has written or sent everything, since exit hooks may not run."""
    import wandb

    wandb.teardown(exit_code=None if kind is None else 1)


def run_name(settings: TrainSettings, folder: Path) -> str:
    """Return the configured name, or else the folder's name.

    If the folder's name does not start with the game and the model, they are prepended.
    """
    given_name = settings.wandb_name or os.environ.get("WANDB_NAME")
    if given_name:
        return given_name
    subject = f"{slug(settings.name)}-{slug(Path(settings.model_name).name)}"
    name = folder.resolve().name
    return name if name.startswith(subject) else f"{subject}-{name}"


def run_tags(settings: TrainSettings) -> list[str]:
    """Return the run's tags: game, model, configured tags and ``WANDB_TAGS``.

    Each tag is truncated to 64 characters. Duplicates are removed.
    """
    tags = [settings.name, Path(settings.model_name).name, *settings.tags]
    tags += os.environ.get("WANDB_TAGS", "").split(",")
    return list(dict.fromkeys(tag.strip()[:64] for tag in tags if tag.strip()))


class TensorboardLogger(ml_log.Logger):
    """Writes TensorBoard event files with a scalar for every metric in ``metrics.jsonl``.

    The settings are written as text at the start, and as hyperparameters together with the final
    scores. Resuming adds an event file with all recorded steps, which supersedes earlier files.
    """

    def __init__(self, folder: RunFolder, about: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._path, self._settings = folder.path / EVENTS, about["settings"]
        self._steps = folder.steps_done()
        make: Any = SummaryWriter
        self._writer = make(str(self._path), purge_step=0 if self._path.is_dir() else None)
        for name in ("settings", "engine", "versions"):
            rows = [f"| {key} | {value} |" for key, value in about[name].items()]
            self._writer.add_text(name, "\n".join(["| | |", "|---|---|", *rows]), 0)
        for row in [row for row in folder.steps() if row["step"] < self._steps]:
            self.log_metrics(row, row["step"])

    def log_hparams(self, config: Any) -> None:
        """Do nothing, because the settings are already written at the start."""

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Write the metrics of a step. If there is no step, write the final scores and settings."""
        scores = {k: v for k, v in metrics.items() if k != "step" and isinstance(v, int | float)}
        if step is None:
            plain = (bool, int, float, str)
            settings = {k: v if isinstance(v, plain) else str(v) for k, v in self._settings.items()}
            self._writer.add_hparams(settings, scores, run_name=".", global_step=self._steps)
            return
        self._steps = step + 1
        for name, value in scores.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # in case the process is killed

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()

    def get_logger_url(self) -> str:
        """Return the command to show all runs in the parent folder of this run."""
        return f"tensorboard --logdir {self._path.parent.parent}"
