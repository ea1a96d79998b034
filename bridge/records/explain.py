"""``explain`` prints a rollout, with the caller, new tokens, action and reward of each turn."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text
from tinker_cookbook.renderers import Renderer
from tinker_cookbook.rl.rollout_runner import stop_reason_from_metrics
from tinker_cookbook.rl.types import STOP_METRIC_PREFIX, Trajectory, Transition

from evert.bridge.env.tool_counts import CALLER, DRIFT, DRIFT_AT, LINEAGE
from evert.bridge.records.sequences import shared
from evert.bridge.tokens.renderer import PromptRenderer, prompt_renderer
from evert.bridge.tokens.token_log import FlatPrompt, flatten

_OURS = (CALLER, LINEAGE, DRIFT, DRIFT_AT)
_SUMMED = (DRIFT, "handoffs", "tools/")
"""Prefixes of the metrics shown in the summary."""

_SEEN = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"}
_SEEN |= {0x7F: 0x2421} | dict.fromkeys([*range(0x80, 0xA0), *range(0xD800, 0xE000)], 0xFFFD)
"""Maps control characters and lone surrogates to Unicode control pictures or U+FFFD."""


def explain(
    trajectory: Trajectory, *, renderer: Renderer | None = None, console: Console | None = None
) -> None:
    """Print a rollout, turn by turn.

    Args:
        trajectory: A trajectory from ``do_single_rollout`` or from a group.
        renderer: The Env's renderer, which is used for decoding (default: the default renderer).
        console: Where to print (default: stdout, in colour on a terminal and unwrapped elsewhere).

    For every turn, this shows the task or thread that made the call, the lineage, the new part of
    the prompt, the action and the reward. The first turn of a lineage also shows which turn it
    branched off from, and why.
    """
    out = console or Console(highlight=False)
    if console is None:  # don't wrap lines when writing to a pipe or a file
        out.soft_wrap = not (out.is_terminal or out.is_jupyter)
    decoder = prompt_renderer(renderer)
    histories: list[FlatPrompt] = []
    cause = where = ""  # describe the drift before this prompt
    for number, transition in enumerate(trajectory.transitions):
        prompt = flatten(transition.ob.chunks)
        length, turn = 0, None
        for index in reversed(range(len(histories))):  # if equally long, prefer the latest
            history = histories[index]
            if len(history) > length and (common := shared(prompt, history)) > length:
                length, turn = common, index
        is_whole = turn is not None and length == len(histories[turn])
        for text in (
            Text(f"turn {number}", style="bold").append_text(calling(transition, len(prompt))),
            _source(turn, length, is_whole, f" (drift: {cause})" if cause else "", where),
            block("new", _decoded(prompt[length:], decoder), "cyan"),
            block("sampled", _decoded(transition.ac.tokens, decoder), "green"),
            earned(transition),
        ):
            out.print(harmless(text))
        cause, where = (str(transition.logs.get(key, "")) for key in (DRIFT, DRIFT_AT))
        histories.append([*prompt, *transition.ac.tokens])
    out.print(harmless(_summary(trajectory)))


def harmless(text: Text) -> Text:
    """Make control characters visible, so that text cannot control the terminal."""
    text.plain = text.plain.translate(_SEEN)
    return text


def calling(transition: Transition, length: int) -> Text:
    """Show who made the call, and the token counts of the prompt (``length``) and the reply."""
    text = Text()
    for key, what in ((CALLER, "called by"), (LINEAGE, "lineage")):
        if (value := transition.logs.get(key)) is not None:
            text.append(f"  {what} {value}")
    text.append(f"  prompt {length} tokens, sampled {len(transition.ac.tokens)}", style="dim")
    return text


def _source(turn: int | None, length: int, is_whole: bool, why: str, where: str) -> Text:
    if is_whole:
        text = Text(f"  continues turn {turn}{why}", style="dim")
    else:
        text = Text(f"  starts a new sequence{why}", style="yellow" if why else "dim")
        if turn is not None:
            text.append(f"; the first {length} tokens are the same as in turn {turn}")
    return text.append(f"\n    {where}") if where else text


def block(name: str, text: str, style: str) -> Text:
    """Format a text block with its name in the left margin."""
    lines = Text()
    for index, line in enumerate(text.splitlines() or [""]):
        lines.append(f"  {name if index == 0 else '':<8}| ", style="dim")
        lines.append(f"{line}\n", style=style)
    lines.rstrip()
    return lines


def _decoded(tokens: Sequence[Any], decoder: PromptRenderer) -> str:
    parts: list[str] = []
    for kind, run in groupby(tokens, type):
        chunk = [*run]
        parts.append(decoder.decode(chunk) if kind is int else f"[{kind.__name__}]" * len(chunk))
    return "".join(parts)


def earned(transition: Transition) -> Text:
    """Show the reward, metrics and logs of a turn."""
    text = Text(f"  reward {transition.reward:g}", style="bold" if transition.reward else "dim")
    notes = [
        f"  {name}={value:g}"
        for name, value in transition.metrics.items()
        if not name.startswith((STOP_METRIC_PREFIX, *_SUMMED)) and name != "lineages"
    ]
    notes += [f"  {key}: {note}" for key, note in transition.logs.items() if key not in _OURS]
    return text.append("".join(notes), style="dim")


def _summary(trajectory: Trajectory) -> Text:
    transitions = trajectory.transitions
    total = sum(transition.reward for transition in transitions)
    last = transitions[-1].metrics if transitions else {}
    stop = trajectory.stop_reason or stop_reason_from_metrics(last)
    text = Text(f"{len(transitions)} turns, reward {total:g}", style="bold")
    text.append(f", {stop}" if stop else "")
    if "lineages" in last:
        count = last["lineages"]
        text.append(f"; {count:g} {'datum' if count == 1 else 'data'}")
    for name, value in last.items():
        if name.startswith(_SUMMED) and name != DRIFT:
            text.append(f", {name} {value:g}", style="dim")
    return text
