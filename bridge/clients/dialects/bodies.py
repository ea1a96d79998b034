"""Parses JSON request bodies.

Long bodies are parsed in a thread (``off_loop.py``). Parsing still blocks all other threads: 64 MiB
of text take 0.1 s, but 64 MiB of brackets take 7 s and gigabytes of memory. We therefore count the
values in a long body before parsing it. We use the standard library's parser, because ``orjson``
converts large integers to floats and rejects the lone surrogates that JavaScript can produce.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from evert.bridge.chat.bad_requests import bad_request
from evert.bridge.chat.fields import is_deeper

LONG_BODY = 2**17
"""Bodies larger than this are parsed in a thread. Smaller ones take at most 20 ms."""

MAX_DEPTH = 100
"""Maximum nesting depth. Deeper bodies would break code that copies or validates them."""

MAX_VALUES = 2**18
"""Maximum number of values. 64 MiB of brackets would become gigabytes of empty lists."""

_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


def read_body(content: bytes) -> Mapping[str, Any]:
    """Parse the JSON object in a request body.

    Raises:
        openai.BadRequestError: The body is not an object, is nested too deeply or has too many
            values.
    """
    try:
        text = content.decode(json.detect_encoding(content), "surrogatepass")
        is_long = len(content) > LONG_BODY and _count(text) > MAX_VALUES
        if is_long and _count(_STRING.sub("", text)) > MAX_VALUES:
            raise bad_request(f"The body has more than {MAX_VALUES} values.")
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"The body is not valid JSON: {error}.") from None
    if text.count("[") + text.count("{") > MAX_DEPTH and is_deeper(body, MAX_DEPTH):
        raise bad_request(f"The body is nested more than {MAX_DEPTH} levels deep.")
    if not isinstance(body, dict):
        raise bad_request(f"The body must be a JSON object, got {body!r:.200}.")
    return body


def _count(text: str) -> int:
    """Return an upper bound on the number of values in JSON (an estimate without strings)."""
    return sum(map(text.count, ",[{")) - text.count("[]") - text.count("{}")
