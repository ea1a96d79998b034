"""The output of ``render()``.

For "ansi", ``transcript`` returns the whole conversation as text. For "human", ``Screen`` prints
new messages as they arrive, in colour if the terminal supports it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evert.envs.as_gymnasium.spaces import text_of

if TYPE_CHECKING:
    from evert.envs.as_gymnasium.episode import Moment

_STYLES = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "magenta"}


def transcript(moment: "Moment", total: float) -> str:
    """Return the conversation as text, followed by a summary line if the episode is over."""
    parts = [f"[{message['role']}]\n{_body(message)}\n" for message in moment.messages]
    if moment.stop_reason is not None:
        parts.append(f"{_closing(moment, total)}\n")
    return "\n".join(parts)


def _body(message: Mapping[str, Any]) -> str:
    calls = [
        f"-> {call['function']['name']}({call['function']['arguments']})"
        if "function" in call
        else f"-> {json.dumps(call)}"
        for call in message.get("tool_calls") or ()
    ]
    text = text_of(message)
    return "\n".join([text, *calls] if text or not calls else calls)


def _closing(moment: "Moment", total: float) -> str:
    return f"-- {moment.stop_reason}: reward {moment.reward:g}, {total:g} in all"


class Screen:
    """Prints each message of an episode once."""

    def __init__(self) -> None:
        self._messages: Sequence[Mapping[str, Any]] = ()
        self._is_closed = False

    def show(self, moment: "Moment", total: float) -> None:
        """Print the messages that have not been printed yet."""
        from rich.console import Console  # imported lazily, since most users never render
        from rich.text import Text

        console = Console()
        start = len(self._messages)
        if moment.messages[:start] != self._messages:  # a different or edited conversation
            start = 0
        for message in moment.messages[start:]:
            style = _STYLES.get(str(message["role"]), "")
            console.print(Text(f"[{message['role']}]", style=f"bold {style}"))
            console.print(Text(_body(message) + "\n", style=style), soft_wrap=True)
        self._messages = moment.messages
        if moment.stop_reason is not None and not self._is_closed:
            self._is_closed = True
            console.print(Text(_closing(moment, total), style="bold"))
