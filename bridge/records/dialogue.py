"""A trajectory as a dialogue: what the policy was told at each call, and what it said."""

from collections.abc import Sequence
from typing import Any

from tinker_cookbook.rl.types import Trajectory


def dialogue(trajectory: Trajectory, tokenizer: Any) -> list[dict[str, str]]:
    """What was told and said, turn by turn.

    Args:
        trajectory: In the order in which it was played, or in lineage order.
        tokenizer: Of the policy.

    Returns:
        One a transition: ``told``, the text of the prompt but for what it repeats of an earlier
        turn and its reply, and ``said``, the reply. Control tokens and images are left out.
    """

    def text(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()

    turns, known = list[dict[str, str]](), list[list[int]]()
    for transition in trajectory.transitions:
        chunks = transition.ob.chunks
        prompt = [token for chunk in chunks for token in getattr(chunk, "tokens", ())]
        said = list(transition.ac.tokens)
        before = next((ids for ids in reversed(known) if prompt[: len(ids)] == ids), [])
        turns.append({"told": text(prompt[len(before) :]), "said": text(said)})
        known.append(prompt + said)
    return turns


def transcript(trajectory: Trajectory, tokenizer: Any) -> str:
    """The same as one text, for a judge: a paragraph ``TOLD:`` and one ``SAID:`` a turn."""
    parts = [
        f"TOLD:\n{turn['told']}\n\nSAID:\n{turn['said']}"
        for turn in dialogue(trajectory, tokenizer)
    ]
    return "\n\n".join(parts)
