"""Convert an episode to one row for TRL: token ids, mask, log-probabilities and reward.

TRL trains on one token sequence per rollout. If an episode has several lineages, we keep the last
one that has sampled tokens, with the reward of the whole episode. The others are only counted.
An episode that failed or has no tokens becomes a fully masked row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tinker_cookbook.completers import TokenCompleter
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import STOP_METRIC_PREFIX

from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.records.sequences import TokenSequence, sequences
from evert.trainers.episodes.failures import Failure, failure_in, failure_of
from evert.trainers.episodes.playing import summed

DROPPED = "dropped_lineages"
"""Metric: the number of lineages of an episode that TRL does not train on."""
FAILED = "failed"
"""Metric: 1 if an episode is excluded because its agent failed, else 0."""


@dataclass(frozen=True)
class TrlResult:
    """The result of one episode."""

    sequence: TokenSequence | None
    """The lineage to train on; None if no model was called or the episode is excluded."""
    reward: float | None
    """The sum of all rewards; None if the agent failed and the episode is excluded."""
    metrics: dict[str, float]
    failure: Failure | None
    """The agent's failure, if any. Also set if ``on_agent_error`` gave the episode a reward."""


async def play(env: ChatAgentEnv, policy: TokenCompleter) -> TrlResult:
    """Play an episode and close its Env."""
    try:
        trajectory = await do_single_rollout(policy, env)
    except Exception as error:
        failure = failure_of(error)
        if failure is None:
            raise
        counts = {"turns": float(env.turns), DROPPED: 0.0, FAILED: 1.0}
        return TrlResult(None, None, counts, failure)
    finally:
        await env.close()
    lineages = sorted(sequences(trajectory), key=lambda sequence: any(sequence.response_mask))
    metrics = summed(trajectory.transitions)
    metrics |= {"turns": env.turns, DROPPED: max(0, len(lineages) - 1), FAILED: 0}
    reward = sum(transition.reward for transition in trajectory.transitions)
    return TrlResult(lineages[-1] if lineages else None, reward, metrics, failure_in(trajectory))


def with_all_ends(episodes: Sequence[TrlResult]) -> list[dict[str, float]]:
    """Return the episodes' metrics, with missing stop reasons set to 0.

    The mean of ``stop/REASON`` is then the fraction of episodes that stopped for that reason.
    """
    names = {name for episode in episodes for name in episode.metrics}
    ends = dict.fromkeys((name for name in names if name.startswith(STOP_METRIC_PREFIX)), 0.0)
    return [ends | episode.metrics for episode in episodes]


def columns(
    episodes: Sequence[TrlResult], filler: int, *, with_logprobs: bool
) -> dict[str, list[list[int]] | list[list[float]] | None]:
    """Return the token columns of a ``rollout_func``, one row per episode."""
    nothing = TokenSequence([filler], [filler], [0], [0.0])
    rows = [episode.sequence or nothing for episode in episodes]
    return {
        "prompt_ids": [row.prompt_ids for row in rows],
        "completion_ids": [row.response_ids for row in rows],
        "env_mask": [row.response_mask for row in rows],
        "logprobs": [row.response_logprobs for row in rows] if with_logprobs else None,
    }
