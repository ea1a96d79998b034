"""Converts a trajectory to token sequences or to text.

The Cookbook's ``trajectory_to_data`` creates data for the Cookbook's trainer. ``sequences`` returns
the same data as lists for other trainers: the prompt, the tokens after it, and which of them were
sampled. ``dialogue`` is meant for people and judges, and contains the new part of each prompt and
the reply as text. ``continued`` finds the turn that each prompt continues.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinker_cookbook.rl.types import PARSE_ERROR_MASKED_METRIC_KEY, Trajectory, Transition

from evert.bridge.env.pending import GIVEN_UP
from evert.bridge.errors import UnsupportedPromptError
from evert.bridge.tokens.token_log import FlatPrompt, flatten


@dataclass
class TokenSequence:
    """One lineage of an episode: a prompt, the replies, and the agent's messages between them.

    The ``response_*`` lists all have the same length. ``rewards`` and ``turn_ends`` have one value
    per turn.
    """

    prompt_ids: list[int]
    """The first observation."""
    response_ids: list[int] = field(default_factory=list)
    """All tokens after the prompt: the actions and the agent's messages between them."""
    response_mask: list[int] = field(default_factory=list)
    """1 for sampled tokens that are trained on, 0 for all other tokens."""
    response_logprobs: list[float] = field(default_factory=list)
    """The log-probabilities of the sampled tokens, and 0.0 for all other tokens."""
    rewards: list[float] = field(default_factory=list)
    """The reward of each turn."""
    turn_ends: list[int] = field(default_factory=list)
    """For each turn, the index in the response where its action ends (exclusive)."""


def continued(turns: Iterable[Transition]) -> Iterator[tuple[int | None, FlatPrompt]]:
    """For each turn, yield the index of the turn that its prompt continues, and the new tokens.

    A prompt continues a turn if it starts with the prompt and reply of that turn. If there are
    several such turns, the longest match is used. If there are none, the index is None and all
    tokens are new.
    """
    histories: list[FlatPrompt] = []
    for turn in turns:
        flat = flatten(turn.ob.chunks)
        after = _continued_number(flat, histories)
        yield after, flat if after is None else flat[len(histories[after]) :]
        histories.append([*flat, *turn.ac.tokens])


def _continued_number(flat: Sequence[Any], histories: Sequence[FlatPrompt]) -> int | None:
    """Return the index of the longest known sequence that is a prefix of the prompt, if any."""
    for number in sorted(range(len(histories)), key=lambda number: -len(histories[number])):
        ids = histories[number]  # compare the last token first, because slicing is slow
        if ids and flat[len(ids) - 1 : len(ids)] == ids[-1:] and flat[: len(ids)] == ids:
            return number
    return None


def shared(first: FlatPrompt, second: FlatPrompt) -> int:
    """Return the length of the common prefix (binary search, because comparing slices is fast)."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def sequences(trajectory: Trajectory) -> list[TokenSequence]:
    """Convert a trajectory to token sequences, one per lineage.

    A linear trajectory becomes a single sequence. A turn continues the longest sequence that is a
    prefix of its observation, even if the turns of several lineages are interleaved. Calls that the
    agent abandoned come first; the other sequences are ordered by their last turns. Turns that are
    not trained on (``ParseErrorPolicy.mask_error_turns``) have mask 0. Group rewards are not
    included.

    Args:
        trajectory: A trajectory as returned by a rollout function.

    Returns:
        Nonempty sequences, or an empty list for an episode with no model calls.

    Raises:
        UnsupportedPromptError: An observation contains more than token ids, such as an image.
    """
    lineages, histories = list[TokenSequence](), list[FlatPrompt]()  # prompts with replies
    for turn in sorted(trajectory.transitions, key=lambda turn: GIVEN_UP not in turn.metrics):
        prompt, reply = _token_ids(turn), turn.ac.tokens
        if not prompt and not reply:
            continue  # the runner's placeholder for an episode without calls
        after = _continued_number(prompt, histories)
        sequence = TokenSequence(prompt) if after is None else lineages.pop(after)
        new = [] if after is None else prompt[len(histories.pop(after)) :]
        mask = int(is_trained(turn.metrics))
        sequence.response_ids += [*new, *reply]
        sequence.response_mask += [0] * len(new) + [mask] * len(reply)
        sequence.response_logprobs += [0.0] * len(new)
        sequence.response_logprobs += turn.ac.maybe_logprobs or [0.0] * len(reply)
        sequence.rewards.append(turn.reward)
        sequence.turn_ends.append(len(sequence.response_ids))
        lineages.append(sequence)
        histories.append([*prompt, *reply])
    return lineages


def is_trained(metrics: Mapping[str, Any]) -> bool:
    """Return whether a turn with these metrics is trained on."""
    return not metrics.get(PARSE_ERROR_MASKED_METRIC_KEY)


def _token_ids(turn: Transition) -> list[int]:
    try:
        return turn.ob.to_ints()
    except ValueError as error:
        kinds = sorted({type(chunk).__name__ for chunk in turn.ob.chunks})
        raise UnsupportedPromptError(
            f"An observation contains {', '.join(kinds)}; expected only token ids. Token sequences "
            "cannot represent images. Train this agent with the Cookbook's loop, or don't send "
            "images."
        ) from error


def dialogue(trajectory: Trajectory, tokenizer: Any) -> list[dict[str, str]]:
    """Return the new prompt text and the reply of each turn, without control tokens and images."""

    def text(tokens: Iterable[Any]) -> str:
        ids = [token for token in tokens if isinstance(token, int)]
        return str(tokenizer.decode(ids, skip_special_tokens=True)).strip()

    prompts = (new for _, new in continued(trajectory.transitions))
    pairs = zip(prompts, trajectory.transitions, strict=True)
    return [{"told": text(new), "said": text(turn.ac.tokens)} for new, turn in pairs]


def transcript(trajectory: Trajectory, tokenizer: Any) -> str:
    """Format the ``dialogue`` as text for a judge, with ``TOLD:`` and ``SAID:`` for each turn."""
    turns = dialogue(trajectory, tokenizer)
    return "\n\n".join(f"TOLD:\n{turn['told']}\n\nSAID:\n{turn['said']}" for turn in turns)
