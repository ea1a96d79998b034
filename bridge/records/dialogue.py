"""A trajectory as a dialogue: what the policy was told at each call, and what it said."""

from collections.abc import Iterable
from typing import Any

from tinker_cookbook.rl.types import Trajectory

from evert.bridge.records.sequences import continued


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
