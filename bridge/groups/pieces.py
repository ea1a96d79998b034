"""Splits trajectories into pieces, to get per-turn or per-token advantages in the Cookbook's loop.

The Cookbook gives all tokens of a trajectory the same advantage, which is the trajectory's total
reward minus the group's mean. We therefore split a trajectory into pieces, one per distinct
advantage. The actions of a piece are the tokens with that advantage, and all earlier tokens are
part of its observations. The total reward of each piece is chosen so that the Cookbook computes the
desired advantage from it. If needed, an extra piece without tokens corrects the group's mean. The
downside is that each piece is a separate datum that repeats the prefix.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import tinker
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.types import (
    PARSE_ERROR_MASKED_METRIC_KEY,
    Metrics,
    Trajectory,
    Transition,
)

from evert.bridge.groups.advantages import Advantages, Group, token_advantages


def put_in_pieces(
    groups: Sequence[Group],
    metrics: Sequence[Sequence[Metrics]],
    advantages: Advantages,
    gamma: float | None,
) -> tuple[list[Trajectory], list[tuple[float, Metrics]]]:
    """Split every trajectory in ``groups`` (one group per seat) into pieces.

    Returns the pieces, and the additional reward and metrics of each piece. The first piece of a
    trajectory gets the trajectory's metrics (``metrics[seat][G]``), total reward and number of
    turns, so that the means logged by the Cookbook do not change.
    """
    centre = float(np.mean(np.concatenate([group.rewards for group in groups])))
    pieces, further, corrections = list[Trajectory](), list[tuple[float, Metrics]](), list[float]()
    for group, seat_metrics in zip(groups, metrics, strict=True):
        by_token = token_advantages(group, advantages, gamma)
        for number, trajectory in enumerate(group.trajectories):
            episode_metrics: Metrics = {
                "reward/total": float(group.rewards[number]),
                "turns_per_episode": len(trajectory.transitions),
                **seat_metrics[number],
            }
            in_place = [by_token[number][turn] for turn in group.order[number]]
            for advantage, piece in _pieces(trajectory, in_place):
                earned = math.fsum(turn.reward for turn in piece.transitions)
                pieces.append(piece)
                further.append((centre + advantage - earned, episode_metrics))
                corrections.append(-advantage)
                episode_metrics = {}
    if correction := math.fsum(corrections):
        pieces.append(Trajectory([], tinker.ModelInput.empty()))
        further.append((centre + correction, {}))
    return pieces, further


def _pieces(
    trajectory: Trajectory, advantages: Sequence[Sequence[float]]
) -> Iterator[tuple[float, Trajectory]]:
    """Yield the distinct advantages in a trajectory and their pieces, in order of appearance."""
    parts_by_advantage = dict[float, list[Transition]]()
    for turn, turn_advantages in zip(trajectory.transitions, advantages, strict=True):
        for advantage, part in _parts(turn, turn_advantages):
            parts_by_advantage.setdefault(advantage, []).append(part)
    for advantage, parts in parts_by_advantage.items():
        # Omit the stop reason, or the Cookbook would clip the reward if a limit was reached.
        yield advantage, Trajectory(parts, trajectory.final_ob)


def _parts(turn: Transition, advantages: Sequence[float]) -> Iterator[tuple[float, Transition]]:
    if len(set(advantages)) <= 1:
        yield (advantages[0] if advantages else 0.0), turn
        return
    start, tokens, logprobs = 0, turn.ac.tokens, turn.ac.logprobs
    masked = {k: v for k, v in turn.metrics.items() if k == PARSE_ERROR_MASKED_METRIC_KEY}
    for advantage, run in itertools.groupby(advantages):
        end = start + len(list(run))
        before = tinker.EncodedTextChunk(tokens=tokens[:start])
        action = TokensWithLogprobs(tokens[start:end], logprobs[start:end], turn.ac.stop_reason)
        observation = turn.ob.append(before) if start else turn.ob
        notes = (masked, {}) if start else (turn.metrics, turn.logs)
        reward = 0.0 if start else turn.reward
        yield advantage, Transition(observation, action, reward, turn.episode_done, *notes)
        start = end
