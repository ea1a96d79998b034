"""Convert a trajectory to verl outputs: one per lineage, or one for the last lineage only."""

# pyright: reportMissingImports=false

from dataclasses import replace
from typing import Any

from tinker_cookbook.rl.types import Trajectory
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from evert.bridge.records.sequences import TokenSequence, sequences
from evert.trainers.integrations.verl.settings import ALL, LoopSettings, Room

LEFT_OUT = "lineages_left_out"
"""Key in ``reward_extra_info`` for the number of the episode's lineages that are not trained on."""


def outputs(
    trajectory: Trajectory,
    settings: LoopSettings,
    room: Room,
    metrics: AgentLoopMetrics,
    fields: dict[str, Any],
    blank: int,
) -> list[AgentLoopOutput]:
    """Return the outputs of an episode, each with the reward of the whole episode.

    verl computes an episode's advantage from its last output, so we put an output with sampled
    tokens last. An episode without model calls becomes a single output without sampled tokens, so
    that its reward still counts for the group, as in the Cookbook.
    """
    lineages = sequences(trajectory) or [TokenSequence([blank], [blank], [0], [0.0])]
    lineages.sort(key=lambda sequence: any(sequence.response_mask))
    chosen = lineages if settings.branches == ALL else lineages[-1:]
    info = {
        "turns": sum(len(sequence.rewards) for sequence in lineages),
        "lineages": len(lineages),
        LEFT_OUT: len(lineages) - len(chosen),
    }
    fields = {**fields, "tool_rewards": [], "stop_reason": trajectory.stop_reason}
    reward = sum(turn.reward for turn in trajectory.transitions)
    has_logprobs = all(turn.ac.maybe_logprobs is not None for turn in trajectory.transitions)
    return [
        AgentLoopOutput(
            prompt_ids=sequence.prompt_ids,
            response_ids=sequence.response_ids,
            response_mask=sequence.response_mask,
            response_logprobs=sequence.response_logprobs if has_logprobs else None,
            reward_score=reward,
            num_turns=2 * len(sequence.rewards),
            metrics=metrics,
            extra_fields={
                **fields,
                "reward_extra_info": dict(info),
                "turn_scores": sequence.rewards,
            },
        )
        for sequence in (_fitted(sequence, room) for sequence in chosen)
    ]


def _fitted(sequence: TokenSequence, room: Room) -> TokenSequence:
    """Move prompt tokens that exceed verl's limit to the response, and mask them."""
    overflow = sequence.prompt_ids[room.prompt :]
    return replace(
        sequence,
        prompt_ids=sequence.prompt_ids[: room.prompt],
        response_ids=[*overflow, *sequence.response_ids],
        response_mask=[*[0] * len(overflow), *sequence.response_mask],
        response_logprobs=[*[0.0] * len(overflow), *sequence.response_logprobs],
    )
