"""Supervised warm-up: a few steps on example conversations, before RL.

The Cookbook's ``supervised.train.main`` runs unchanged in ``RUN/warm_up``, and resumes as RL does.
RL then starts from the warmed-up weights.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import chz
import tinker
from rich.console import Console
from tinker_cookbook.checkpoint_utils import CheckpointRecord
from tinker_cookbook.renderers.base import get_text_content
from tinker_cookbook.supervised.types import SupervisedDataset, SupervisedDatasetBuilder

from evert.bridge.chat.messages import read_tools
from evert.bridge.conversations.reading import hear
from evert.bridge.import_paths import resolve
from evert.bridge.tokens.renderer import prompt_renderer
from evert.trainers.config.fields import DemonstrationsError
from evert.trainers.config.recipes import path_of
from evert.trainers.config.train import TrainSettings, renderer_of
from evert.trainers.rundir.folder import WARM_UP
from evert.trainers.system.files import CHECKPOINTS, read_jsonl, slug

if TYPE_CHECKING:
    from tinker_cookbook.renderers import Renderer
    from tinker_cookbook.supervised.train import Config

Conversation: TypeAlias = list[Mapping[str, Any]] | Mapping[str, Any]
"""The Cookbook's messages; or OpenAI's fine-tuning format, ``{"messages": ..., "tools": ...}``."""

Demonstrations: TypeAlias = Callable[[int], Iterator[Conversation]]
"""From a seed to conversations; the assistant's messages are learned."""


def load_demonstrations(demonstrations: Demonstrations | str) -> Demonstrations:
    """Return the function, or the one that an import path ``package.module:function`` names."""
    found: Any = demonstrations
    if isinstance(found, str):
        found = resolve(found, "demonstrations", DemonstrationsError)
    if not callable(found):
        raise DemonstrationsError(
            f"{demonstrations!r} is {found!r:.100}; expected a function from a seed to "
            "conversations."
        )
    return found  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ConversationDataset(SupervisedDataset):
    """Batches of conversations. Each has its own seed, so a resumed run gets the same batches."""

    settings: "ConversationDatasetBuilder"
    demonstrations: Demonstrations
    renderer: "Renderer"

    def get_batch(self, index: int) -> list[tinker.Datum]:
        """Return the batch's conversations as data, each with weights that sum to 1."""
        from tinker_cookbook.supervised.data import conversation_to_datum

        wanted = self.settings.batch_size
        drawn = self.demonstrations(self.settings.seed * 1_000_003 + index)
        shown = [*itertools.islice(drawn, wanted)]
        if len(shown) < wanted:
            raise DemonstrationsError(
                f"Got {len(shown)} demonstrations for a batch of {wanted}. Give more, an endless "
                "iterator, or a smaller warm_up_batch."
            )
        messages = [messages_of(each, self.renderer) for each in shown]
        return [conversation_to_datum(each, self.renderer, None) for each in messages]

    def set_epoch(self, seed: int = 0) -> None:
        """Do nothing: there is one epoch, and no conversation is seen twice."""

    def __len__(self) -> int:
        return self.settings.steps


def messages_of(conversation: Conversation, renderer: "Renderer") -> list[Any]:
    """Return a conversation for the renderer, with its tools in the first message."""
    if not isinstance(conversation, Mapping):
        return conversation
    messages = [heard.message for heard in hear(conversation["messages"], 0, {})]
    tools = conversation.get("tools")
    if not tools:
        return messages
    system = get_text_content(messages.pop(0)) if messages[0]["role"] == "system" else ""
    return [*prompt_renderer(renderer).tool_prefix(read_tools(tools), system), *messages]


@chz.chz
class ConversationDatasetBuilder(SupervisedDatasetBuilder):
    """Builds the warm-up's dataset, configured by chz."""

    demonstrations: Any = chz.field(doc="A function from a seed to conversations, or its path.")
    steps: int = chz.field(doc="Batches.")
    batch_size: int = chz.field(doc="Conversations a batch.")
    seed: int = 0
    model_name: str = chz.field(doc="Model whose tokenizer is used.")
    renderer_name: str = chz.field(doc="Cookbook renderer.")

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        """Return the dataset, and no test set: RL's held-out tasks are the test."""
        from evert.bridge.tokens.bases import model_renderer

        renderer = model_renderer(self.model_name, self.renderer_name)
        return ConversationDataset(self, load_demonstrations(self.demonstrations), renderer), None


def warm_up_config(settings: TrainSettings, folder: Path, *, embedded: bool) -> "Config":
    """Return the configuration for ``tinker_cookbook.supervised.train.main``."""
    from tinker_cookbook.supervised.train import Config

    from evert.trainers.training.cookbook import saving

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
        eval_every=0,
        **saving(embedded, 5),
    )


async def warm_up(
    settings: TrainSettings, folder: Path, console: Console, *, embedded: bool
) -> CheckpointRecord | None:
    """Warm up, unless that is done, and return the weights; None if the run has no warm-up."""
    if not settings.warm_up_steps:
        return None
    from tinker_cookbook.supervised import train as cookbook

    from evert.trainers.training.progress import display
    from evert.trainers.training.tracking import follow

    place = folder / WARM_UP
    if weights := _final(place):
        return weights
    place.mkdir(exist_ok=True)
    config = warm_up_config(settings, folder, embedded=embedded)
    console.print(f"warming up on {path_of(settings.demonstrations)}", markup=False, soft_wrap=True)
    with display(console, place, settings.warm_up_steps, "warming up") as show, follow(show):
        await cookbook.main(config)
    return _final(place)


def _final(place: Path) -> CheckpointRecord | None:
    for record in read_jsonl(place / CHECKPOINTS):
        if record.get("name") == "final" and record.get("sampler_path"):
            return CheckpointRecord.from_dict(record)
    return None
