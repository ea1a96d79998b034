"""``continued``: which turn a prompt goes on from; ``sequences`` and ``dialogue``: what follows.

The Cookbook's ``trajectory_to_data`` makes data of a trajectory for its own trainer; every other
trainer wants the same in lists: the prompt, what came after it, and which of that was sampled.
People, and judges, want a text: what the policy was told at each call, and what it said.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinker_cookbook.rl.types import PARSE_ERROR_MASKED_METRIC_KEY, Trajectory, Transition

from evert.bridge.errors import UnsupportedPromptError
from evert.bridge.tokens.token_log import FlatPrompt, flatten


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


def continued(turns: Iterable[Transition]) -> Iterator[tuple[int | None, FlatPrompt]]:
    """Of each turn, the number of the one that its prompt goes on from, and what is new after that.

    A prompt goes on from a turn if it begins with that turn's prompt and reply; from the longest of
    several. None: it goes on from none, and all of it is new.
    """
    known: list[FlatPrompt] = []
    for turn in turns:
        flat = flatten(turn.ob.chunks)
        after = _begun(flat, known)
        yield after, flat if after is None else flat[len(known[after]) :]
        known.append([*flat, *turn.ac.tokens])


def _begun(flat: Sequence[Any], known: Sequence[FlatPrompt]) -> int | None:
    """The number of the longest of the known sequences that a prompt begins with."""
    for number in sorted(range(len(known)), key=lambda number: -len(known[number])):
        ids = known[number]  # the last token first: a slice of the whole costs its length
        if ids and flat[len(ids) - 1 : len(ids)] == ids[-1:] and flat[: len(ids)] == ids:
            return number
    return None


def shared(first: FlatPrompt, second: FlatPrompt) -> int:
    """Length of the common beginning, by halving: slices compare fast."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


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
    found, known = list[TokenSequence](), list[FlatPrompt]()  # known: prompt and response of each
    for turn in trajectory.transitions:
        seen, said = _token_ids(turn), turn.ac.tokens
        if not seen and not said:
            continue  # what the runner makes up for an episode without a call
        after = _begun(seen, known)
        sequence = TokenSequence(seen) if after is None else found.pop(after)
        new = [] if after is None else seen[len(known.pop(after)) :]
        mask = 0 if turn.metrics.get(PARSE_ERROR_MASKED_METRIC_KEY) else 1
        sequence.response_ids += [*new, *said]
        sequence.response_mask += [0] * len(new) + [mask] * len(said)
        sequence.response_logprobs += [0.0] * len(new)
        sequence.response_logprobs += turn.ac.maybe_logprobs or [0.0] * len(said)
        sequence.rewards.append(turn.reward)
        sequence.turn_ends.append(len(sequence.response_ids))
        found.append(sequence)
        known.append([*seen, *said])
    return found


def _token_ids(turn: Transition) -> list[int]:
    try:
        return turn.ob.to_ints()
    except ValueError as error:
        kinds = sorted({type(chunk).__name__ for chunk in turn.ob.chunks})
        raise UnsupportedPromptError(
            f"An observation holds {', '.join(kinds)}; expected token ids alone. Token sequences "
            "cannot carry images: train such agents with the Cookbook's loop, or leave them out."
        ) from error


def dialogue(trajectory: Trajectory, tokenizer: Any) -> list[dict[str, str]]:
    """Each transition's prompt, but for what it repeats of an earlier turn, and its reply, as text.

    Control tokens and images are left out.
    """

    def text(tokens: Iterable[Any]) -> str:
        ids = [token for token in tokens if isinstance(token, int)]
        return str(tokenizer.decode(ids, skip_special_tokens=True)).strip()

    told = (new for _, new in continued(trajectory.transitions))
    pairs = zip(told, trajectory.transitions, strict=True)
    return [{"told": text(new), "said": text(turn.ac.tokens)} for new, turn in pairs]


def transcript(trajectory: Trajectory, tokenizer: Any) -> str:
    """The same as one text, for a judge: a paragraph ``TOLD:`` and one ``SAID:`` a turn."""
    turns = dialogue(trajectory, tokenizer)
    return "\n\n".join(f"TOLD:\n{each['told']}\n\nSAID:\n{each['said']}" for each in turns)
