"""Who plays the seats of a group that are not trained on in it: opponents, frozen.

All episodes of a group meet the same opponent at the same seat, so that its rewards compare. Who it
is follows from the step, the task and the seed alone, so that a resumed run meets the same.

Which checkpoint is drawn evenly from all that came before: playing against the mean of all past
policies is fictitious self-play (J. Heinrich, M. Lanctot, D. Silver, "Fictitious Self-Play in
Extensive-Form Games", ICML 2015), and a share of games against past ones beside self-play keeps
what was learned against them (T. Bansal et al., "Emergent Complexity via Multi-Agent Competition",
ICLR 2018; O. Vinyals et al., "Grandmaster level in StarCraft II using multi-agent reinforcement
learning", Nature 575, 2019, who also prefer those that are hard to beat).
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tinker_cookbook.checkpoint_utils import load_checkpoints_file

from evert.bridge.models.frozen import FrozenModel
from evert.bridge.models.tinker_model import TinkerModel

Opponents: TypeAlias = Callable[[Sequence[str], int, int, int], Mapping[str, FrozenModel]]
"""From the names of the seats, the step, the task's number and the group's seed to the seats that
are played by frozen models; at least one seat is left."""


@dataclass(frozen=True)
class Against:
    """One opponent, at every seat but one: each seat is the policy's in turn.

    Attributes:
        model: From a seed to the opponent.
    """

    model: Callable[[int], FrozenModel]

    def __call__(
        self, seats: Sequence[str], step: int, number: int, seed: int
    ) -> dict[str, FrozenModel]:
        """See ``Opponents``."""
        own = seats[number % len(seats)]
        return {seat: self.model(seed) for seat in seats if seat != own}


@dataclass(frozen=True)
class League:
    """Past checkpoints of a run, those that it keeps, as opponents of the present policy.

    Attributes:
        log_path: The run's folder, where the Cookbook lists its checkpoints.
        share: Of the groups in which one seat, drawn evenly, is an opponent's, from 0 to 1.
        max_tokens: Most tokens of an opponent's reply.
        renderer_name: The run's.
    """

    log_path: str
    share: float
    max_tokens: int | None = None
    renderer_name: str | None = None

    def __call__(
        self, seats: Sequence[str], step: int, number: int, seed: int
    ) -> dict[str, FrozenModel]:
        """See ``Opponents``; none before the first checkpoint."""
        draws, past = random.Random(f"league/{seed}"), self.past(step)
        if not past or draws.random() >= self.share:
            return {}
        path, seat = draws.choice(past), draws.choice(seats)
        return {seat: TinkerModel(None, path, self.renderer_name, 1.0, self.max_tokens)}

    def past(self, step: int) -> list[str]:
        """Paths of the weights that were saved before a step, to be kept."""
        kept = [one for one in load_checkpoints_file(self.log_path) if not one.get("rolling")]
        saved = {one.batch: one.sampler_path for one in kept if one.batch is not None}
        return [path for batch, path in sorted(saved.items()) if path and batch < step]
