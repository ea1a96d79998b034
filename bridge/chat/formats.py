"""Formats that a reply must have: ``response_format``, a forced ``tool_choice``, strict tools.

A hosted API constrains the sampler. Here the trainer samples, so evert asks for the format and
checks the reply. It appends the instruction to the prompt, and repeats it only when the format
changes. If a reply does not fit, evert tells the policy why and asks again, a limited number of
times. Each attempt is a transition and is trained on; the agent gets only the last reply.
"""

import json
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

ANY_VALUE = "{}"  # the schema of any JSON

LONGEST_CHECKED = 100_000
"""Maximum length of a reply that is checked against a schema, in characters. The slowest schema
that we tried, an enum of a thousand objects, then takes two to three seconds."""

_FENCED = re.compile(r"```(?:json)?[^\S\n]*\n(.*)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """The format that a reply must have."""

    schema: str | None = None  # JSON text, for a reply without tool calls; None for any text
    must_call: tuple[str, ...] = ()  # tools of which one must be called
    strict: tuple[tuple[str, object], ...] = ()  # each tool, with the schema of its arguments

    @property
    def is_asked_for(self) -> bool:
        """Whether the prompt asks for the format; if not, replies are only checked."""
        return self.schema is not None or bool(self.must_call)

    def instruction(self) -> str:
        """Return the text that asks the policy for the format; "" if any text will do."""
        if self.must_call:
            names = ", ".join(self.must_call)
            if len(self.must_call) == 1:
                return f"Call the tool {names} now."
            return f"Call one of these tools now: {names}."
        if self.schema is None:
            return ""
        if self.schema == ANY_OBJECT:
            return "Answer with one JSON object and nothing else."
        if self.schema == ANY_VALUE:
            return "Answer with JSON and nothing else."
        return f"Answer with JSON and nothing else. It must fit this JSON schema: {self.schema}"

    def request(self) -> "Message":
        """Return the instruction as a message to append to the agent's messages."""
        return {"role": "user", "content": self.instruction()}

    def correction(self, problem: str) -> "Message":
        """Return a message that states the problem and asks for another reply."""
        return {"role": "user", "content": f"{problem} {self.instruction()}".strip()}

    def cleaned(self, reply: "Reply") -> "Reply":
        """Remove the code fence around a JSON reply, since agents parse the reply."""
        if self.schema is None or reply.tool_calls:
            return reply
        fenced = _FENCED.fullmatch(reply.text.strip())
        return reply if fenced is None else replace(reply, text=fenced[1].strip())

    def problem(self, reply: "Reply") -> str | None:
        """Say what is wrong with a reply; None if it fits, or its JSON is too long to check."""
        names = [call.function.name for call in reply.tool_calls]
        if self.must_call and not {*names} & {*self.must_call}:
            return "You did not call a required tool."
        schemas = dict(self.strict)
        for call, name in zip(reply.tool_calls, names, strict=True):
            if name in schemas:
                text, schema = call.function.arguments, json.dumps(schemas[name])
                if (problem := _misfit(f"Your call of {name}", text, schema)) is not None:
                    return problem
        if self.schema is None or names:
            return None
        return _misfit("Your answer", reply.text, self.schema)


def _misfit(subject: str, text: str, schema: str) -> str | None:
    try:
        value = orjson.loads(text)  # by RFC 8259: no NaN, no lone surrogates
    except ValueError as error:
        return f"{subject} is not JSON ({error})."
    if len(text) > LONGEST_CHECKED:
        return None
    error_place = first_error(schema, value)
    return None if error_place is None else f"{subject} does not fit the schema at {error_place}."
