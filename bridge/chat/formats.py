"""What a reply has to look like: ``response_format`` and a forced ``tool_choice``.

A hosted API constrains the sampler. A trainer's sampler is its own, so evert asks and checks: the
instruction goes to the end of the prompt, once for as long as the format stays the same, and a
reply that does not fit is answered with what is wrong with it, a bounded number of times. Each of
these attempts is a transition of its own, trained on like any other; the agent sees the last.
"""

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import orjson

from evert.bridge.chat.schemas import first_error

if TYPE_CHECKING:
    from tinker_cookbook.renderers.base import Message

    from evert.bridge.chat.reply import Reply

ANY_OBJECT = '{"type": "object"}'
"""The schema of ``{"type": "json_object"}``."""

ANY_VALUE = "{}"  # the schema of JSON of any kind

LONGEST_CHECKED = 100_000
"""Most characters of a reply that is held against a schema. The slowest schema found, an enum of a
thousand objects, takes two to three seconds for so many."""

_FENCED = re.compile(r"```(?:json)?[^\S\n]*\n(.*)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """What a reply has to look like."""

    schema: str | None = None  # as JSON text, of a reply without tool calls; None for any text
    must_call: tuple[str, ...] = ()  # tools of which one has to be called

    def instruction(self) -> str:
        """What the policy is told."""
        if self.must_call:
            names = ", ".join(self.must_call)
            if len(self.must_call) == 1:
                return f"Call the tool {names} now."
            return f"Call one of these tools now: {names}."
        if self.schema == ANY_OBJECT:
            return "Answer with one JSON object and nothing else."
        if self.schema == ANY_VALUE:
            return "Answer with JSON and nothing else."
        return f"Answer with JSON and nothing else. It must fit this JSON schema: {self.schema}"

    def request(self) -> "Message":
        """The instruction as the message that is put after the agent's own."""
        return {"role": "user", "content": self.instruction()}

    def correction(self, problem: str) -> "Message":
        """The message that asks for the reply again."""
        return {"role": "user", "content": f"{problem} {self.instruction()}"}

    def cleaned(self, reply: "Reply") -> "Reply":
        """The reply with a code fence around its JSON taken away, for agents that parse it."""
        if self.schema is None or reply.tool_calls:
            return reply
        fenced = _FENCED.fullmatch(reply.text.strip())
        return reply if fenced is None else replace(reply, text=fenced[1].strip())

    def problem(self, reply: "Reply") -> str | None:
        """What is wrong with a reply, told to the policy; a very long one fits any schema."""
        if self.must_call:
            if any(call.function.name in self.must_call for call in reply.tool_calls):
                return None
            return "You did not call a tool that was asked for."
        if self.schema is None or reply.tool_calls:
            return None
        try:
            value = orjson.loads(reply.text)  # as RFC 8259 has it: no NaN, no half of a character
        except ValueError as error:
            return f"Your answer is no JSON ({error})."
        if len(reply.text) > LONGEST_CHECKED:
            return None
        worst = first_error(self.schema, value)
        return None if worst is None else f"Your answer does not fit the schema at {worst}."
