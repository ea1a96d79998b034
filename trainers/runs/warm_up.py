"""Supervised warm-up: a few steps on conversations that show how a game goes, before RL.

The Tinker Cookbook's ``supervised.train.main`` does it, unchanged, in ``RUN/warm_up``, a run of its
own with metrics and checkpoints, so that it resumes as RL does. RL then starts from its weights.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from evert.trainers.runs.folder import CHECKPOINTS, WARM_UP, read_jsonl
from evert.trainers.runs.settings import TrainSettings, path_of, renderer_of, slug

if TYPE_CHECKING:
    from tinker_cookbook.supervised.train import Config


@dataclass(frozen=True)
class WarmWeights:
    """``tinker://`` paths of the weights after a warm-up: to train on, and to sample from."""

    state_path: str
    sampler_path: str


def warm_up_config(settings: TrainSettings, folder: Path, *, embedded: bool) -> "Config":
    """The warm-up as ``tinker_cookbook.supervised.train.main`` takes it.

    Args:
        settings: Of the run.
        folder: The run's folder.
        embedded: As for ``cookbook_config``.
    """
    from tinker_cookbook.supervised.train import Config

    from evert.trainers.runs.demonstrations import ConversationDatasetBuilder

    return Config(
        recipe_name=f"evert_{slug(settings.name)}_warm_up",
        log_path=str(folder / WARM_UP),
        model_name=settings.model_name,
        renderer_name=renderer_of(settings),
        base_url=settings.base_url,
        lora_rank=settings.lora_rank,
        learning_rate=settings.warm_up_learning_rate,
        dataset_builder=ConversationDatasetBuilder(
            demonstrations=settings.demonstrations,
            steps=settings.warm_up_steps,
            batch_size=settings.warm_up_batch,
            seed=settings.seed,
            model_name=settings.model_name,
            renderer_name=renderer_of(settings),
        ),
        save_every=0,
        rolling_save_every=5 if embedded else 0,
        eval_every=0,
        ttl_seconds=None if embedded else 7 * 24 * 3600,
    )


async def warm_up(
    settings: TrainSettings, folder: Path, console: Console, *, embedded: bool
) -> WarmWeights | None:
    """Warm the run's model up, unless that is done already.

    Returns:
        The warm weights; None where the run has no warm-up.
    """
    if not settings.warm_up_steps:
        return None
    from tinker_cookbook.supervised import train as cookbook

    from evert.trainers.runs.progress import display, follow, quiet_cookbook

    place = folder / WARM_UP
    if weights := _final(place):
        return weights
    place.mkdir(exist_ok=True)
    config = warm_up_config(settings, folder, embedded=embedded)
    console.print(f"warming up on {path_of(settings.demonstrations)}", markup=False, soft_wrap=True)
    with display(console, place, settings.warm_up_steps, "warming up") as show:
        async with follow(place, show), quiet_cookbook(cookbook.main(config)) as training:
            await training
    return _final(place)


def _final(place: Path) -> WarmWeights | None:
    """The last checkpoint of a warm-up that is complete."""
    for record in read_jsonl(place / CHECKPOINTS):
        if record.get("name") == "final" and record.get("sampler_path"):
            return WarmWeights(record["state_path"], record["sampler_path"])
    return None
