"""Opponents: frozen models that play some of the seats in a group.

All episodes in a group have the same opponent at the same seat, so that their rewards are
comparable. The choice only depends on the step, the task and the seed, so a resumed run chooses the
same opponents.

``League`` samples uniformly from past checkpoints. Playing against the average of all past policies
is known as fictitious self-play (J. Heinrich, M. Lanctot, D. Silver, "Fictitious Self-Play in
Extensive-Form Games", ICML 2015). Mixing such games into self-play preserves the skills learned
against past policies (T. Bansal et al., "Emergent Complexity via Multi-Agent Competition", ICLR
2018; O. Vinyals et al., "Grandmaster level in StarCraft II using multi-agent reinforcement
learning", Nature 575, 2019, who also prefer policies that are hard to beat).
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tinker_cookbook.checkpoint_utils import load_checkpoints_file

from evert.bridge.models.frozen import FrozenModel
from evert.bridge.models.tinker_model import TinkerModel

Opponents: TypeAlias = Callable[[Sequence[str], int, int, int], Mapping[str, FrozenModel]]
"""Takes the seat names, the step, the task index and the group's seed, and returns a dict that maps
seats to frozen models. At least one seat must be left for the policy."""


@dataclass(frozen=True)
class Against:
    """The policy plays one seat, which depends on the task. An opponent plays all other seats.

    Attributes:
        model: A function that takes a seed and returns the opponent.
    """

    model: Callable[[int], FrozenModel]

    def __call__(
        self, seats: Sequence[str], step: int, number: int, seed: int
    ) -> dict[str, FrozenModel]:
        """Return the opponent for every seat except the policy's."""
        policy_seat = seats[number % len(seats)]
        return {seat: self.model(seed) for seat in seats if seat != policy_seat}


@dataclass(frozen=True)
class League:
    """Uses a run's past checkpoints (except rolling ones) as opponents of the current policy.

    Attributes:
        log_path: The run's folder, where the Cookbook lists the checkpoints.
        share: Fraction of groups (0 to 1) in which an opponent plays a random seat.
        max_tokens: Maximum tokens per opponent reply.
        renderer_name: The renderer used in the run.
    """

    log_path: str
    share: float
    max_tokens: int | None = None
    renderer_name: str | None = None

    def __call__(
        self, seats: Sequence[str], step: int, number: int, seed: int
    ) -> dict[str, FrozenModel]:
        """Return {seat: opponent} for a random seat, or {} if the policy plays all seats.

        Before the first checkpoint, the result is always {}.
        """
        draws, past = random.Random(f"league/{seed}"), self.past(step)
        if not past or draws.random() >= self.share:
            return {}
        path, seat = draws.choice(past), draws.choice(seats)
        return {seat: TinkerModel(None, path, self.renderer_name, 1.0, self.max_tokens)}

    def past(self, step: int) -> list[str]:
        """Return the paths of weights saved before a step, excluding rolling checkpoints."""
        saved = {
            checkpoint.batch: checkpoint.sampler_path
            for checkpoint in load_checkpoints_file(self.log_path)
            if checkpoint.batch is not None and not checkpoint.get("rolling")
        }
        return [path for batch, path in sorted(saved.items()) if path and batch < step]
