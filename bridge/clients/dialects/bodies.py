"""Reads the JSON object in a request's body.

A short body is parsed where it arrives, a long body in a thread (``off_loop.py``). The parser
blocks all other threads: 0.1 s for 64 MiB of text, but 7 s and gigabytes of memory for 64 MiB of
brackets. So the values of a long body are counted first. The parser is the standard library's,
because ``orjson`` reads large integers as floats and refuses JavaScript's lone surrogates.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from evert.bridge.chat.bad_requests import bad_request
from evert.bridge.chat.fields import is_deeper

LONG_BODY = 2**17
"""Parsing this many bytes takes at most 20 ms; longer bodies are parsed in a thread."""

MAX_DEPTH = 100
"""Maximum nesting of a body; a deeper body breaks code that copies or checks it."""

MAX_VALUES = 2**18
"""Maximum number of values in a body; 64 MiB of brackets would become gigabytes of empty lists."""

_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


def read_body(content: bytes) -> Mapping[str, Any]:
    """Return a body's JSON object.

    Raises:
        openai.BadRequestError: The body is not an object, nests too deeply or has too many values.
    """
    try:
        text = content.decode(json.detect_encoding(content), "surrogatepass")
        is_long = len(content) > LONG_BODY and _count(text) > MAX_VALUES
        if is_long and _count(_STRING.sub("", text)) > MAX_VALUES:
            raise bad_request(f"The body has more than {MAX_VALUES} values.")
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"The body is not JSON: {error}.") from None
    if text.count("[") + text.count("{") > MAX_DEPTH and is_deeper(body, MAX_DEPTH):
        raise bad_request(f"The body is nested more than {MAX_DEPTH} levels deep.")
    if not isinstance(body, dict):
        raise bad_request(f"The body must be a JSON object, got {body!r:.200}.")
    return body


def _count(text: str) -> int:
    """Return an upper bound on the number of values in JSON text whose strings were removed."""
    return sum(map(text.count, ",[{")) - text.count("[]") - text.count("{}")
