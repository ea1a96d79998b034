"""Required output formats: ``response_format``, a forced ``tool_choice``, and strict tools.

A hosted API enforces a required format by constraining the sampler. Here the trainer does the
sampling, so evert puts an instruction in the prompt and validates the reply. The instruction is
appended once and repeated only when the format changes. If a reply is invalid, evert tells the
policy what is wrong and retries a limited number of times. Every attempt is a transition that is
trained on, but the agent only sees the last reply.
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
"""The schema for the response format ``{"type": "json_object"}``."""

ANY_VALUE = "{}"  # a schema that accepts any JSON

LONGEST_CHECKED = 100_000
"""Maximum length, in characters, of a reply that we validate against a schema. At this length, the
slowest schema we tried (an enum of a thousand objects) takes two to three seconds."""

_FENCED = re.compile(r"```(?:json)?[^\S\n]*\n(.*)```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """The output format required by a request."""

    schema: str | None = None  # JSON schema for replies without tool calls; None allows any text
    must_call: tuple[str, ...] = ()  # the reply must call at least one of these tools
    strict: tuple[tuple[str, object], ...] = ()  # (tool name, argument schema) of strict tools

    @property
    def is_asked_for(self) -> bool:
        """Whether the prompt needs an instruction. Strict tools only need validation."""
        return self.schema is not None or bool(self.must_call)

    def instruction(self) -> str:
        """Return the instruction for the policy, or "" if any text is allowed."""
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
        return f"Answer with JSON and nothing else. It must match this JSON schema: {self.schema}"

    def request(self) -> "Message":
        """Return the instruction as a user message."""
        return {"role": "user", "content": self.instruction()}

    def correction(self, problem: str) -> "Message":
        """Return a user message that explains the problem and repeats the instruction."""
        return {"role": "user", "content": f"{problem} {self.instruction()}".strip()}

    def cleaned(self, reply: "Reply") -> "Reply":
        """Strip the Markdown code fence from a JSON reply, so that the agent can parse it."""
        if self.schema is None or reply.tool_calls:
            return reply
        fenced = _FENCED.fullmatch(reply.text.strip())
        return reply if fenced is None else replace(reply, text=fenced[1].strip())

    def problem(self, reply: "Reply") -> str | None:
        """Describe what is wrong with a reply.

        Returns None if the reply is valid, or if its JSON is too long to check.
        """
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
        value = orjson.loads(text)  # strict RFC 8259: rejects NaN and lone surrogates
    except ValueError as error:
        return f"{subject} is not JSON ({error})."
    if len(text) > LONGEST_CHECKED:
        return None
    error_place = first_error(schema, value)
    return None if error_place is None else f"{subject} does not match the schema at {error_place}."
