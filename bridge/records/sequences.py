"""``sequences``: a trajectory as the token sequences that other trainers take.

The Cookbook's ``trajectory_to_data`` makes data of a trajectory for its own trainer; every other
trainer wants the same in lists: the prompt, what came after it, and which of that was sampled.
"""

from dataclasses import dataclass, field

from tinker_cookbook.rl.types import PARSE_ERROR_MASKED_METRIC_KEY, Trajectory, Transition

from evert.bridge.errors import UnsupportedPromptError


@dataclass
class TokenSequence:
    """One lineage of an episode: a prompt, and what was sampled and put between after it.

    ``response_ids``, ``response_mask`` and ``response_logprobs`` are of one length, ``rewards`` and
    ``turn_ends`` of another: the number of turns.
    """

    prompt_ids: list[int]
    """The first observation."""
    response_ids: list[int] = field(default_factory=list)
    """Every token after it: the actions, and what the agent said between them."""
    response_mask: list[int] = field(default_factory=list)
    """1 where a token was sampled and is to be trained on, else 0."""
    response_logprobs: list[float] = field(default_factory=list)
    """Of the sampled tokens, by the policy that sampled them; 0.0 for the others."""
    rewards: list[float] = field(default_factory=list)
    """Reward of each turn."""
    turn_ends: list[int] = field(default_factory=list)
    """Number of response tokens up to the end of each turn's action."""


def sequences(trajectory: Trajectory) -> list[TokenSequence]:
    """Token sequences of a trajectory: one for a linear conversation, else one a lineage.

    A turn goes on with the longest sequence that its observation begins with, also where the turns
    of several lineages alternate. The one that ends last comes last. A turn that is masked out of
    the training (``ParseErrorPolicy.mask_error_turns``) has mask 0. Rewards that a group adds are
    not in here.

    Args:
        trajectory: As a rollout returns it.

    Returns:
        At least one token each; an empty list for an episode without a model call.

    Raises:
        UnsupportedPromptError: An observation holds an image, say: it is more than token ids.
    """
    found: list[TokenSequence] = []
    known: list[list[int]] = []
    """Prompt and response of each."""
    for turn in trajectory.transitions:
        seen = _token_ids(turn)
        if not seen and not turn.ac.tokens:
            continue  # what the runner makes up for an episode without a call
        begun = [i for i, ids in enumerate(known) if seen[: len(ids)] == ids]
        if begun:
            best = max(begun, key=lambda i: len(known[i]))
            sequence, ids = found.pop(best), known.pop(best)
            _append(sequence, seen[len(ids) :], [0.0] * (len(seen) - len(ids)), 0)
        else:
            sequence = TokenSequence(seen)
        said = turn.ac.tokens
        sampled = 0 if turn.metrics.get(PARSE_ERROR_MASKED_METRIC_KEY) else 1
        _append(sequence, said, turn.ac.maybe_logprobs or [0.0] * len(said), sampled)
        sequence.rewards.append(turn.reward)
        sequence.turn_ends.append(len(sequence.response_ids))
        found.append(sequence)
        known.append([*seen, *said])
    return found


def _append(sequence: TokenSequence, ids: list[int], logprobs: list[float], mask: int) -> None:
    sequence.response_ids += ids
    sequence.response_mask += [mask] * len(ids)
    sequence.response_logprobs += logprobs


def _token_ids(turn: Transition) -> list[int]:
    try:
        return turn.ob.to_ints()
    except ValueError as error:
        kinds = sorted({type(chunk).__name__ for chunk in turn.ob.chunks})
        raise UnsupportedPromptError(
            f"An observation holds {', '.join(kinds)}; expected token ids alone. Token sequences "
            "cannot carry images: train such agents with the Cookbook's loop, or leave them out."
        ) from error
