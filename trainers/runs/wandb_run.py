"""A run on Weights & Biases.

The Cookbook logs to W&B itself: ``wandb_project`` in its configuration is all it takes. But it
gives a run no tags, no identity to resume and no word about what it ran on, and W&B has
``wandb.init`` hand out the run that is under way already. So ours is started first, with all of
that, and the Cookbook finds it. It also ends it, before the final weights have been scored:
``result`` takes the run up once more.

W&B's own environment variables apply (``WANDB_MODE=offline``, ``WANDB_ENTITY``, ``WANDB_TAGS``,
``WANDB_RUN_GROUP``, ...). A run's id is kept in its folder, in ``wandb.json``.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from evert.trainers.runs.folder import RunFolder
from evert.trainers.runs.settings import TrainSettings, slug
from evert.trainers.runs.tracking import TrackingError

if TYPE_CHECKING:
    import wandb
    from tinker_cookbook.rl.train import Config

RECORD = "wandb.json"
"""In the run folder: the run's ``project`` and ``id``."""


class WandbRun:
    """The W&B run of a run folder; a tracker."""

    def __init__(self, settings: TrainSettings, folder: RunFolder) -> None:
        self._settings = settings
        self._folder = folder

    def start(self) -> "wandb.Run":
        """Begin the run, or go on with the one the folder knows.

        Raises:
            TrackingError: W&B will not.
        """
        import wandb

        recorded = self._folder.read_json(RECORD) or {}
        same = recorded.get("project") == self._settings.wandb_project
        try:
            run = wandb.init(
                project=self._settings.wandb_project,
                name=run_name(self._settings, self._folder.path),
                id=recorded["id"] if same else None,
                resume="allow",
                tags=run_tags(self._settings),
                dir=str(self._folder.path),
                # What is printed is for people at this terminal; a run has its own logs.log.
                settings=wandb.Settings(console="off", silent=True),
            )
        except wandb.Error as error:
            raise TrackingError(
                "Weights & Biases could not be started for "
                f"wandb_project={self._settings.wandb_project}: {str(error).strip()} Log in with "
                "`wandb login` or set WANDB_API_KEY; WANDB_MODE=offline keeps the run on disk, to "
                "be sent later with `wandb sync`; or leave wandb_project out."
            ) from error
        self._folder.write_json(
            RECORD, {"project": self._settings.wandb_project, "id": run.id, "url": run.url}
        )
        return run

    def begin(self, config: "Config") -> None:
        """Write the Cookbook's configuration, over that of before a resumption.

        The Cookbook's own update would be refused where a value has changed, such as ``steps``.
        """
        import wandb
        from tinker_cookbook.utils.ml_log import dump_config

        if wandb.run is not None:
            update_config(wandb.run, dump_config(config))

    def row(self, metrics: Mapping[str, Any]) -> None:
        """Nothing to do: the Cookbook logs its steps."""

    def result(self, result: Mapping[str, Any]) -> None:
        """Add the held-out scores before and after to the run's summary."""
        scores = flat_scores(result)
        if not scores:
            return
        with self.start() as run:
            run.summary.update(scores)


@contextmanager
def wandb_run(
    settings: TrainSettings,
    folder: RunFolder,
    about: Mapping[str, Any],
    console: Console,
) -> Iterator[WandbRun]:
    """Have the run under way inside the block; see ``tracking``."""
    import wandb

    tracker = WandbRun(settings, folder)
    run = tracker.start()
    update_config(run, {"evert": dict(about)})
    console.print(f"wandb: {where(run)}", soft_wrap=True, markup=False)
    try:
        yield tracker
    except BaseException:
        wandb.teardown(exit_code=1)
        raise
    # Waits until all is written or sent: a run's process may end without Python's exit hooks.
    wandb.teardown()


def update_config(run: "wandb.Run", values: Mapping[str, Any]) -> None:
    """Write values into a run's configuration, over those that are there."""
    config: Any = run.config
    config.update(values, allow_val_change=True)


def where(run: "wandb.Run") -> str:
    """Where the run can be seen: its address, or how to send it there."""
    # A resumed run has several folders, and all of them go to the same run.
    kept = Path(run.dir).parents[1] / f"offline-run-*-{run.id}"
    return run.url or f"kept on this machine; to send it: wandb sync {kept}"


def run_name(settings: TrainSettings, folder: Path) -> str:
    """The run's name: its folder's, with the game and the model in front if they are not there."""
    given = settings.wandb_name or os.environ.get("WANDB_NAME")
    if given:
        return given
    subject = f"{slug(settings.name)}-{slug(Path(settings.model_name).name)}"
    name = folder.resolve().name
    return name if name.startswith(subject) else f"{subject}-{name}"


def run_tags(settings: TrainSettings) -> list[str]:
    """Game, model, and those of the settings and of ``WANDB_TAGS``; each once, 64 letters long."""
    wanted = [settings.name, Path(settings.model_name).name, *settings.tags]
    wanted += os.environ.get("WANDB_TAGS", "").split(",")
    return list(dict.fromkeys(tag.strip()[:64] for tag in wanted if tag.strip()))


def flat_scores(result: Mapping[str, Any]) -> dict[str, float]:
    """The held-out means of a ``result.json``: ``held_out/after/greedy`` and so on."""
    return {
        f"held_out/{when}/{how}": score["reward"]
        for when, scores in result["held_out"].items()
        for how, score in (scores or {}).items()
    }
