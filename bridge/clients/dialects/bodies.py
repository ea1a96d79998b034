"""The JSON object that a request's body is.

A short body is read where it arrives, a long one in a thread (``off_loop.py``). The parser lets no
other thread run meanwhile: 64 MiB of text take it 0.1 s, as many brackets 7 s and gigabytes, which
is why a long body's values are counted before. It is the standard library's: ``orjson`` would read
large integers as floats, and refuse the half characters that JavaScript sends.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from evert.bridge.chat.bad_requests import bad_request
from evert.bridge.chat.fields import is_deeper

LONG_BODY = 2**17
"""Bytes that are read, at worst, in 20 ms: what has more goes to a thread."""

MAX_DEPTH = 100
"""Levels of lists and objects in a body; what copies or checks a deeper one would break."""

MAX_VALUES = 2**18
"""Values in a body, at any depth; 64 MiB of brackets would be gigabytes of empty lists."""

_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


def read_body(content: bytes) -> Mapping[str, Any]:
    """The object; a 400 where it is none, nested too deeply, or of too many values."""
    try:
        text = content.decode(json.detect_encoding(content), "surrogatepass")
        is_long = len(content) > LONG_BODY and _count(text) > MAX_VALUES
        if is_long and _count(_STRING.sub("", text)) > MAX_VALUES:
            raise bad_request(f"The body has more than {MAX_VALUES} values.")
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"The body is no JSON: {error}.") from None
    if is_deeper(body, MAX_DEPTH):
        raise bad_request(f"The body is nested more than {MAX_DEPTH} levels deep.")
    if not isinstance(body, dict):
        raise bad_request(f"The body must be a JSON object, got {body!r:.200}.")
    return body


def _count(text: str) -> int:
    """How many values are in a text at most, if none of it is within quotes."""
    return sum(map(text.count, ",[{")) - text.count("[]") - text.count("{}")
