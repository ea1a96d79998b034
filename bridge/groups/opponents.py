"""Opponents: frozen models that play some of the seats of a group.

All episodes of a group have the same opponent at the same seat, so that their rewards are
comparable. The choice depends only on the step, the task and the seed, so a resumed run chooses the
same opponents.

``League`` samples past checkpoints uniformly. Play against the mean of all past policies is
fictitious self-play (J. Heinrich, M. Lanctot, D. Silver, "Fictitious Self-Play in Extensive-Form
Games", ICML 2015). Mixing such games into self-play preserves the skills learned against past
policies (T. Bansal et al., "Emergent Complexity via Multi-Agent Competition", ICLR 2018; O. Vinyals
et al., "Grandmaster level in StarCraft II using multi-agent reinforcement learning", Nature 575,
2019, who also prefer policies that are hard to beat).
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tinker_cookbook.checkpoint_utils import load_checkpoints_file

from evert.bridge.models.frozen import FrozenModel
from evert.bridge.models.tinker_model import TinkerModel

Opponents: TypeAlias = Callable[[Sequence[str], int, int, int], Mapping[str, FrozenModel]]
"""A function of the seats' names, the step, the task's number and the group's seed. It returns
frozen models by seat, and leaves at least one seat to the policy."""


@dataclass(frozen=True)
class Against:
    """One opponent plays all seats but one; the policy plays that seat, which varies by task.

    Attributes:
        model: A function from a seed to the opponent.
    """

    model: Callable[[int], FrozenModel]

    def __call__(
        self, seats: Sequence[str], step: int, number: int, seed: int
    ) -> dict[str, FrozenModel]:
        """Return the opponent at every seat except the policy's."""
        policy_seat = seats[number % len(seats)]
        return {seat: self.model(seed) for seat in seats if seat != policy_seat}


@dataclass(frozen=True)
class League:
    """Past checkpoints of a run, except rolling checkpoints, as opponents of the current policy.

    Attributes:
        log_path: The run's folder, where the Cookbook lists its checkpoints.
        share: Share of groups, from 0 to 1, in which an opponent plays a random seat.
        max_tokens: Cap on the tokens of an opponent's reply.
        renderer_name: The run's renderer.
    """

    log_path: str
    share: float
    max_tokens: int | None = None
    renderer_name: str | None = None

    def __call__(
        self, seats: Sequence[str], step: int, number: int, seed: int
    ) -> dict[str, FrozenModel]:
        """Return an opponent for a random seat, or {}; always {} before the first checkpoint."""
        draws, past = random.Random(f"league/{seed}"), self.past(step)
        if not past or draws.random() >= self.share:
            return {}
        path, seat = draws.choice(past), draws.choice(seats)
        return {seat: TinkerModel(None, path, self.renderer_name, 1.0, self.max_tokens)}

    def past(self, step: int) -> list[str]:
        """Return the paths of the weights saved before a step, without rolling checkpoints."""
        saved = {
            checkpoint.batch: checkpoint.sampler_path
            for checkpoint in load_checkpoints_file(self.log_path)
            if checkpoint.batch is not None and not checkpoint.get("rolling")
        }
        return [path for batch, path in sorted(saved.items()) if path and batch < step]
