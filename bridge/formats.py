"""What a reply has to look like: ``response_format`` and a forced ``tool_choice``.

A hosted API constrains the sampler. A trainer's sampler is its own, so evert asks and checks: the
instruction goes to the end of the prompt, once for as long as the format stays the same, and a
reply that does not fit is answered with what is wrong with it, a bounded number of times. Each of
these attempts is a transition of its own, trained on like any other; the agent sees the last.
"""

import json
import logging
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator
    from tinker_cookbook.renderers.base import Message

    from evert.bridge.messages import Reply

logger = logging.getLogger(__name__)

ANY_OBJECT = '{"type": "object"}'
"""The schema of ``{"type": "json_object"}``."""

ANY_VALUE = "{}"
"""The schema of JSON of any kind."""

_FENCED = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """What a reply has to look like.

    Attributes:
        schema: JSON schema, as JSON text, of a reply without tool calls; None for any text.
        must_call: Tools of which one has to be called; empty for none.
    """

    schema: str | None = None
    must_call: tuple[str, ...] = ()

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
        fenced = _FENCED.match(reply.text)
        return reply if fenced is None else replace(reply, text=fenced[1])

    def problem(self, reply: "Reply") -> str | None:
        """What is wrong with a reply, as a sentence for the policy; None when it fits."""
        if self.must_call:
            if any(call.function.name in self.must_call for call in reply.tool_calls):
                return None
            return "You did not call a tool that was asked for."
        if self.schema is None or reply.tool_calls:
            return None
        try:
            value = json.loads(reply.text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            return f"Your answer is no JSON ({error})."
        worst = first_error(self.schema, value)
        if worst is None:
            return None
        return f"Your answer does not fit the schema at {worst.json_path}: {worst.message:.200}."


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is none of its values")  # Python reads NaN and Infinity


def first_error(schema: str, value: Any) -> "ValidationError | None":
    """Where ``value`` does not fit the schema; None when it does.

    A schema that cannot be followed to its end (a reference into nothing, or in a circle) cannot
    be held against the policy: everything fits it.
    """
    from jsonschema.exceptions import ValidationError
    from referencing.exceptions import Unresolvable

    try:
        return next(iter(validator(schema).iter_errors(value)), None)
    except ArithmeticError as error:
        return ValidationError(f"a number in it cannot be checked ({error})")
    except (Unresolvable, RecursionError) as error:
        logger.warning("A JSON schema cannot be checked, so every reply fits it: %s", error)
        return None


@lru_cache(256)
def validator(schema: str) -> "Validator":
    """A validator for a JSON schema given as JSON text; it fetches nothing.

    Raises:
        jsonschema.SchemaError: It is no JSON schema.
    """
    import jsonschema
    import referencing
    from jsonschema.validators import validator_for

    value: Any = json.loads(schema)
    kind = validator_for(value, default=jsonschema.Draft202012Validator)
    kind.check_schema(value)
    checked: Validator = kind(value, registry=referencing.Registry())
    return checked
