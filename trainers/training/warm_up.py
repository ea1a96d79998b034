"""Supervised warm-up: train on example conversations for a few steps before RL.

This runs the Cookbook's ``supervised.train.main``, unchanged, in ``RUN/warm_up``. It can be resumed
in the same way as RL, which then starts from the resulting weights.
"""

import itertools
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import chz
import tinker
from openai import BadRequestError
from rich.console import Console
from tinker_cookbook.checkpoint_utils import CheckpointRecord
from tinker_cookbook.renderers.base import Message, TrainOnWhat, get_text_content
from tinker_cookbook.supervised.common import datum_from_model_input_weights
from tinker_cookbook.supervised.types import SupervisedDataset, SupervisedDatasetBuilder

from evert.bridge.chat.messages import read_tools
from evert.bridge.conversations.reading import read_entries
from evert.bridge.errors import RendererMismatchError
from evert.bridge.groups.kept import Kept
from evert.bridge.import_paths import resolve
from evert.bridge.models.tinker_model import context_length_here
from evert.bridge.records.row_files import names_file
from evert.bridge.tokens.renderer import PromptRenderer, prompt_renderer, supervised_example
from evert.trainers.config.demonstrations import (
    Demonstration,
    demonstration,
    describe,
    read_demonstrations,
)
from evert.trainers.config.fields import DemonstrationsError
from evert.trainers.config.recipes import path_of
from evert.trainers.config.train import TrainSettings, renderer_of
from evert.trainers.rundir.folder import WARM_UP
from evert.trainers.system.files import CHECKPOINTS, read_jsonl, slug

if TYPE_CHECKING:
    from tinker_cookbook.supervised.train import Config

logger = logging.getLogger(__name__)

Conversation: TypeAlias = list[Mapping[str, Any]] | Mapping[str, Any]
"""A list of Cookbook messages, or a row in a format from ``config/demonstrations.py``."""

Demonstrations: TypeAlias = Callable[[int], Iterator[Conversation]]
"""Maps a seed to conversations, whose assistant messages are trained on."""


def load_demonstrations(
    demonstrations: Demonstrations | list[Demonstration] | Kept | str,
    min_reward: float | None = None,
) -> Demonstrations | list[Demonstration]:
    """Load demonstrations from an import path or a file, and return a function or rows.

    A ``Kept`` contains demonstrations that have already been loaded; they are returned as they are.
    If the demonstrations are rows, each row is validated.

    Raises:
        DemonstrationsError: There are no demonstrations, or a row is invalid.
        RecordError: The folder contains neither a dataset nor records.
    """
    source: Any = demonstrations
    if isinstance(source, Kept):
        return source.value  # type: ignore[no-any-return]
    if isinstance(source, str) and names_file(source):
        source = read_demonstrations(source, min_reward)
    elif isinstance(source, str):
        source = resolve(source, "demonstrations", DemonstrationsError)
    if isinstance(source, list) and any(isinstance(row, Demonstration) for row in source):
        for row in source:
            _messages(row)
    elif not callable(source):
        raise DemonstrationsError(
            f"{demonstrations!r} is {source!r:.100}; expected a function that takes a seed and "
            "returns conversations."
        )
    return source  # type: ignore[no-any-return]


# -- data ----------------------------------------------------------------------------------------


def data_of(
    conversation: Conversation | Demonstration,
    prompts: PromptRenderer,
    place: str = "A conversation",
    limit: int | None = None,
) -> list[tinker.Datum]:
    """Convert a conversation to datums, each with weights that sum to 1.

    If the renderer renders a reply differently once it is part of the history, every reply to train
    on becomes a separate datum.

    Args:
        conversation: The conversation. Special-token strings in it are encoded as plain text.
        prompts: The model's renderer.
        place: Name of the conversation in error messages.
        limit: Maximum number of tokens, or None for no limit.

    Raises:
        DemonstrationsError: The conversation cannot be read or rendered, or is too long.
    """
    try:
        messages, learned = render(conversation, prompts, place)
        if prompts.renderer.has_extension_property:
            pairs = zip(messages, learned, strict=True)
            marked: list[Any] = [{**message, "trainable": flag} for message, flag in pairs]
            examples = [supervised_example(prompts, marked, TrainOnWhat.CUSTOMIZED)]
        else:
            ends = [end for end, is_learned in enumerate(learned, 1) if is_learned]
            last = TrainOnWhat.LAST_ASSISTANT_MESSAGE
            examples = [supervised_example(prompts, messages[:end], last) for end in ends]
    except RendererMismatchError as error:
        raise DemonstrationsError(f"{place}: {error}") from error
    longest = max((tokens.length for tokens, _ in examples), default=0)
    if limit is not None and longest > limit:
        raise DemonstrationsError(
            f"{place} has {longest:,} tokens, but the model's limit is {limit:,}. Shorten or "
            "remove it."
        )
    return [datum_from_model_input_weights(*example, reduction="mean") for example in examples]


def render(
    conversation: Conversation | Demonstration, prompts: PromptRenderer, place: str
) -> tuple[list[Message], list[bool]]:
    """Return the messages to render, including tools, and whether to train on each of them.

    Raises:
        DemonstrationsError: A message is invalid. The error includes ``place``.
    """
    if isinstance(conversation, list):
        escaped: list[Any] = [prompts.escape(m) for m in conversation]  # type: ignore[arg-type]
        return escaped, [message["role"] == "assistant" for message in escaped]
    row = conversation
    if not isinstance(row, Demonstration):
        row = demonstration(place, row)
    messages = [prompts.escape(message) for message in _messages(row)]
    if not row.tools:
        return messages, row.learned
    system = get_text_content(messages.pop(0)) if messages[0]["role"] == "system" else ""
    prefix = prompts.tool_prefix(read_tools(row.tools), system)
    learned = row.learned[len(row.learned) - len(messages) :]
    return [*prefix, *messages], [False] * len(prefix) + learned


def _messages(row: Demonstration) -> list[Message]:
    try:
        read_tools(row.tools)
        return [entry.message for entry in read_entries(row.messages, 0, {})]
    except BadRequestError as error:
        raise DemonstrationsError(f"{row.place}: {error}") from None


@dataclass(frozen=True)
class ConversationDataset(SupervisedDataset):
    """Batches of conversations. A batch depends only on its index, even after resuming."""

    steps: int
    batch: Callable[[int], list[tinker.Datum]]

    def get_batch(self, index: int) -> list[tinker.Datum]:
        """Return a batch of conversations as datums, each with weights that sum to 1."""
        return self.batch(index)

    def set_epoch(self, seed: int = 0) -> None:
        """Do nothing, because the epoch follows from the batch index."""

    def __len__(self) -> int:
        return self.steps


@chz.chz
class ConversationDatasetBuilder(SupervisedDatasetBuilder):
    """Builds the dataset for the warm-up."""

    demonstrations: Any = chz.field(doc="A function from a seed to conversations, or a path.")
    min_reward: float | None = chz.field(default=None, doc="Minimum reward of recorded rollouts.")
    steps: int = chz.field(doc="Number of batches.")
    batch_size: int = chz.field(doc="Conversations per batch.")
    seed: int = 0
    model_name: str = chz.field(doc="Model to take the tokenizer from.")
    renderer_name: str = chz.field(doc="Cookbook renderer.")

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        """Return the dataset. There is no test set, because RL has held-out tasks.

        Raises:
            DemonstrationsError: A conversation cannot be used for training.
        """
        from evert.bridge.tokens.bases import model_renderer

        prompts = prompt_renderer(model_renderer(self.model_name, self.renderer_name))
        data = partial(data_of, prompts=prompts, limit=context_length_here(self.model_name))
        source = load_demonstrations(self.demonstrations, self.min_reward)
        if isinstance(source, list):
            rows = [data(row, place=row.place) for row in source if any(row.learned)]
            return ConversationDataset(self.steps, partial(self._of_rows, rows)), None
        return ConversationDataset(self.steps, partial(self._of_function, source, data)), None

    def _of_function(
        self, draw: Demonstrations, data: Callable[..., list[tinker.Datum]], index: int
    ) -> list[tinker.Datum]:
        examples = [*itertools.islice(draw(self.seed * 1_000_003 + index), self.batch_size)]
        if len(examples) < self.batch_size:
            raise DemonstrationsError(
                f"Got {len(examples)} demonstrations for a batch of {self.batch_size}. Return at "
                "least as many as a batch needs (or an endless iterator), or reduce warm_up_batch."
            )
        place = f"{path_of(draw)}, batch {index}, conversation"
        data_by_row = [data(e, place=f"{place} {number}") for number, e in enumerate(examples)]
        return [*itertools.chain(*data_by_row)]

    def _of_rows(self, rows: Sequence[list[tinker.Datum]], index: int) -> list[tinker.Datum]:
        """Return a batch of rows. They are shuffled differently in each epoch."""
        numbers = range(index * self.batch_size, (index + 1) * self.batch_size)
        places = [divmod(number, len(rows)) for number in numbers]
        chosen = [_order(self.seed, epoch, len(rows))[place] for epoch, place in places]
        return [datum for number in chosen for datum in rows[number]]


@lru_cache(2)
def _order(seed: int, epoch: int, count: int) -> list[int]:
    return random.Random(f"{seed}/{epoch}").sample(range(count), count)


def warm_up_config(settings: TrainSettings, folder: Path, *, embedded: bool) -> "Config":
    """Return the config for ``tinker_cookbook.supervised.train.main``."""
    from tinker_cookbook.supervised.train import Config

    from evert.trainers.training.cookbook import saving_options

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
            min_reward=settings.warm_up_min_reward,
            steps=settings.warm_up_steps,
            batch_size=settings.warm_up_batch,
            seed=settings.seed,
            model_name=settings.model_name,
            renderer_name=renderer_of(settings),
        ),
        save_every=0,
        eval_every=0,
        **saving_options(embedded, 5),
    )


async def warm_up(
    settings: TrainSettings, folder: Path, console: Console, *, embedded: bool
) -> CheckpointRecord | None:
    """Run the warm-up, if it has not finished yet, and return its weights (None if disabled)."""
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
    text = f"warming up on {path_of(settings.demonstrations)}{_counts(settings)}"
    console.print(text, markup=False, soft_wrap=True)
    logger.info("%s", text)
    with display(console, place, settings.warm_up_steps, "warming up") as show, follow(show):
        await cookbook.main(config)
    return _final(place)


def _counts(settings: TrainSettings) -> str:
    """Describe a file of demonstrations, and state how many epochs the warm-up takes."""
    rows = load_demonstrations(settings.demonstrations, settings.warm_up_min_reward)
    if not isinstance(rows, list):
        return ""
    learned = sum(any(row.learned) for row in rows)
    epochs = settings.warm_up_steps * settings.warm_up_batch / learned
    return f": {describe(rows)}; {epochs:.3g} epochs"


def _final(place: Path) -> CheckpointRecord | None:
    for record in read_jsonl(place / CHECKPOINTS):
        if record.get("name") == "final" and record.get("sampler_path"):
            return CheckpointRecord.from_dict(record)
    return None
