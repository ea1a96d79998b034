"""Conversations that show how a game goes, as a supervised dataset of the Tinker Cookbook's.

``load_demonstrations`` finds the function that a recipe or a user names, ``ConversationDataset``
draws batches from it. Warming a model up on them is ``warm_up.py``.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import chz
import tinker
from tinker_cookbook.supervised.types import SupervisedDataset, SupervisedDatasetBuilder

from evert.bridge.errors import EvertError
from evert.bridge.imports import resolve

if TYPE_CHECKING:
    from tinker_cookbook.renderers import Renderer

Demonstrations: TypeAlias = Callable[[int], Iterator[list[Mapping[str, Any]]]]
"""From a seed to conversations, each a list of messages; what the assistant says is learned."""


class DemonstrationsError(EvertError, ValueError):
    """There are no demonstrations where a recipe or a user points, or too few."""


def load_demonstrations(demonstrations: Demonstrations | str) -> Demonstrations:
    """The function that an import path ``package.module:function`` names, or itself.

    Raises:
        DemonstrationsError: There is none.
    """
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
    """Batches of conversations; each batch draws its own, so that a resumed run has the same.

    Attributes:
        demonstrations: Where they come from.
        renderer: Of the model.
        steps: Batches.
        batch_size: Conversations a batch.
        seed: The same seed gives the same batches.
    """

    demonstrations: Demonstrations
    renderer: "Renderer"
    steps: int
    batch_size: int
    seed: int

    def get_batch(self, index: int) -> list[tinker.Datum]:
        """The batch's conversations as data, each with weights that sum to 1.

        Raises:
            DemonstrationsError: There are not enough for a batch.
        """
        from tinker_cookbook.supervised.data import conversation_to_datum

        drawn = self.demonstrations(self.seed * 1_000_003 + index)
        messages: list[Any] = list(itertools.islice(drawn, self.batch_size))
        if len(messages) < self.batch_size:
            raise DemonstrationsError(
                f"{len(messages)} demonstrations were given for a batch of {self.batch_size}. "
                "Give as many as are asked for, an endless iterator, or a smaller warm_up_batch."
            )
        return [conversation_to_datum(each, self.renderer, None) for each in messages]

    def set_epoch(self, seed: int = 0) -> None:
        """Nothing: there is one epoch, and no conversation is seen twice."""

    def __len__(self) -> int:
        return self.steps


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
        """The dataset to learn from, and none to test on: RL's held-out tasks are the test."""
        from tinker_cookbook.renderers import get_renderer
        from tinker_cookbook.tokenizer_utils import get_tokenizer

        from evert.bridge.base import register_base_tokenizers

        register_base_tokenizers()
        tokenizer = get_tokenizer(self.model_name)
        dataset = ConversationDataset(
            load_demonstrations(self.demonstrations),
            get_renderer(self.renderer_name, tokenizer, model_name=self.model_name),
            steps=self.steps,
            batch_size=self.batch_size,
            seed=self.seed,
        )
        return dataset, None
