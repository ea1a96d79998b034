"""Prevents text in a prompt from being encoded as control tokens.

Renderers build the prompt as text, and the tokenizer then looks for control tokens in it. It cannot
tell the template's control tokens from ones that were typed by a user (``<|im_end|>``), found on a
web page or quoted by the policy. So before a string is passed to a renderer, it is *marked*: a mark
is inserted inside each control token. If the start or the end of the string could become part of a
control token together with neighbouring text, a mark is inserted there as well. The mark is an
unguessable word that templates leave unchanged. When the renderer encodes the text,
``MarkedTokenizer`` removes the marks and *spells* each marked control token, that is, it encodes
its characters as plain text. All other text is tokenised as usual.

A control token is any token that was added to the tokenizer's vocabulary, whether or not it is
flagged as special. Only whitespace and single characters are excluded. Control tokens include
``<tool_call>`` and ``</think>``, so text cannot be mistaken for a call or a thought.
"""

import json
import re
import secrets
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate, chain
from types import SimpleNamespace
from typing import Any

from tinker_cookbook.renderers.base import Message, ToolCall

MARK = f"evertmark{secrets.token_hex(12)}z"

_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"')  # possessive, to match long strings quickly
_SURROGATE = re.compile("[\ud800-\udfff]")

_CACHED_LENGTH = 2000  # in characters; enough for a template's headers and a system prompt


class ControlTokens:
    """The control tokens of a tokenizer. ``mark`` marks them in a text."""

    def __init__(self, tokenizer: Any) -> None:
        added = getattr(tokenizer, "added_tokens_decoder", {})
        ids = {str(token): number for number, token in added.items()}
        for name in getattr(tokenizer, "all_special_tokens", ()):
            ids.setdefault(str(name), tokenizer.convert_tokens_to_ids(name))
        names = [name for name in ids if len(name.strip()) > 1]
        self.names = sorted(names, key=lambda name: (-len(name), name))  # longest match first
        self.by_id = {ids[name]: name for name in names}
        # Finds control tokens as a tokenizer does. Matches nothing if the tokenizer has none.
        self.pattern = re.compile("|".join(map(re.escape, self.names)) or "(?!)")
        self._longest = max(map(len, names), default=0)
        self._beginnings = {name[:end] for name in names for end in range(1, len(name))}
        self._endings = {name[start:] for name in names for start in range(1, len(name))}
        cores = {name[i : len(name) - j] for name in names for i in (1, 2) for j in (1, 2)}
        self._cores = cores - {""}
        edges = {name[0] for name in names} | {name[-1] for name in names}
        self._edges = re.compile("|".join(map(re.escape, sorted(edges))))
        backend = getattr(tokenizer, "backend_tokenizer", None)
        finds_normalized = any(getattr(token, "normalized", False) for token in added.values())
        normalizer = getattr(backend, "normalizer", None) if finds_normalized else None
        self._normal = None if normalizer is None else normalizer.normalize_str

    # -- marking ---------------------------------------------------------------------------------

    def mark(self, text: str) -> str:
        """Mark text that contains a control token or could become part of one.

        If the tokenizer looks for control tokens in normalized text, the normalized text is marked.
        """
        if not self.names:
            return text
        if self._normal is not None:
            text = self._normalized(text)
        # For example, a template may put the text between "<" and ">".
        is_core = len(text) < self._longest and text.strip() in self._cores
        if not is_core and self._edges.search(text) is None:
            return text  # most texts
        marked = self.pattern.sub(_mark_match, text)
        body = marked.strip()
        before = MARK if is_core or self._may_end_token(body) else ""
        after = MARK if is_core or self._may_begin_token(body) else ""
        if not before and not after:
            return marked
        at = marked.find(body[0])
        return f"{marked[:at]}{before}{body}{after}{marked[at + len(body) :]}"

    def _may_end_token(self, text: str) -> bool:
        """Return whether a text starts with the end of a control token."""
        return any(text[:n] in self._endings for n in range(1, min(self._longest, len(text) + 1)))

    def _may_begin_token(self, text: str) -> bool:
        """Return whether a text ends with the start of a control token."""
        return any(
            text[-n:] in self._beginnings for n in range(1, min(self._longest, len(text) + 1))
        )

    def _normalized(self, text: str) -> str:
        """Return the text that the tokenizer searches for control tokens."""
        assert self._normal is not None
        normal = self._normal(text)
        stays = self._normal(normal) == normal  # if not, the tokenizer would change it again
        holds = len(self.pattern.findall(normal)) > len(self.pattern.findall(text))
        return normal if stays or holds else text

    def mark_message(self, message: Message) -> Message:
        """Mark the strings in a message. Returns the same object if there is nothing to mark."""
        content = message["content"]
        marked = self.mark(content) if isinstance(content, str) else self._mark_parts(content)
        if len(message) == 2:  # fast path: only role and text
            return message if marked == content else {**message, "content": marked}
        fields: dict[str, Any] = {"content": marked}
        for key in ("name", "tool_call_id"):
            if isinstance(value := message.get(key), str):
                fields[key] = self.mark(value)
        if calls := message.get("tool_calls"):
            fields["tool_calls"] = [self._mark_call(call) for call in calls]
        same = all(message[key] == value for key, value in fields.items())  # type: ignore[literal-required]
        return message if same else {**message, **fields}  # type: ignore[typeddict-item]

    def _mark_parts(self, parts: list[Any]) -> list[Any]:
        pairs = [(part["type"], part) for part in parts]
        return [
            {**part, kind: self.mark(part[kind])} if kind in ("text", "thinking") else part
            for kind, part in pairs
        ]

    def _mark_call(self, call: ToolCall) -> ToolCall:
        name, arguments = self.mark(call.function.name), self._mark_json(call.function.arguments)
        call_id = None if call.id is None else self.mark(call.id)
        if (name, arguments, call_id) == (call.function.name, call.function.arguments, call.id):
            return call
        function = call.function.model_copy(update={"name": name, "arguments": arguments})
        return call.model_copy(update={"id": call_id, "function": function})

    def _mark_json(self, text: str) -> str:
        """Mark the strings in JSON text, including escaped strings (``\\u003c``).

        The rest of the text is not reformatted, because it may be nested too deeply to parse.
        """
        marked = self.mark(text)
        value = None
        try:
            value = json.loads(marked)
        except ValueError:
            return marked
        except RecursionError:
            pass  # too deeply nested to parse, but its strings can still be marked
        if not isinstance(value, str):
            return _STRING.sub(self._mark_string, marked)
        inner = self._mark_json(value)  # JSON inside JSON, because some templates decode twice
        return marked if inner == value else _json_string(inner)

    def _mark_string(self, match: re.Match[str]) -> str:
        try:
            value = json.loads(match[0])
        except ValueError:
            return match[0]
        marked = self.mark(value)
        if marked == value:
            return match[0]
        plain = marked.replace(MARK, "")
        if plain == value and self.pattern.search(plain) is None:  # only the ends were marked
            return f'"{MARK}{match[0][1:-1]}{MARK}"'
        return _json_string(marked)

    def mark_deep(self, value: Any) -> Any:
        """Mark all strings in a JSON value, including keys."""
        if isinstance(value, str):
            return self.mark(value)
        if isinstance(value, dict):
            return {self.mark_deep(key): self.mark_deep(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.mark_deep(inner) for inner in value]
        return value


def _json_string(text: str) -> str:
    """Dump a string as JSON. Lone surrogates are escaped because UTF-8 cannot encode them."""
    return json.dumps(text, ensure_ascii=_SURROGATE.search(text) is not None)


def _mark_match(match: re.Match[str]) -> str:
    return f"{match[0][0]}{MARK}{match[0][1:]}"


# -- encoding ------------------------------------------------------------------------------------


class MarkedTokenizer:
    """A tokenizer that encodes marked control tokens as plain text, and other text as usual.

    Short texts are cached, because renderers encode the same few headers for every message, and all
    episodes in a group start with the same prompt.
    """

    def __init__(self, tokenizer: Any, control: ControlTokens) -> None:
        self._tokenizer = tokenizer
        self._control = control
        self._encode_cached = lru_cache(1024)(self._encode_uncached)
        self._spell_cached = lru_cache(1024)(self._spell)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, **options: Any) -> list[int]:
        """Return the token ids of ``text`` without its marks."""
        if MARK not in text:
            if len(text) <= _CACHED_LENGTH:  # the common case
                return list(self._encode_cached(text, **options))
            return list(self._encode_uncached(text, **options))
        pieces = text.split(MARK)
        plain, marks = "".join(pieces), list(accumulate(map(len, pieces[:-1])))
        tokens: list[int] = []
        end = 0
        for match in self._control.pattern.finditer(plain):
            if bisect_right(marks, match.start()) < bisect_left(marks, match.end()):
                tokens += self._encode(plain[end : match.start()], **options)
                tokens += self._spell_cached(match[0])
                options["add_special_tokens"] = False  # only at the start
                end = match.end()
        return [*tokens, *self._encode(plain[end:], **options)]

    def spelled_out(self, tokens: Iterable[int]) -> list[int]:
        """Return the tokens with each control token spelled as text."""
        names = self._control.by_id
        return [
            t
            for token in tokens
            for t in (self._spell_cached(names[token]) if token in names else (token,))
        ]

    def _spell(self, name: str) -> tuple[int, ...]:
        tail = name[1:]
        holds_token = any(token in tail for token in self._control.names)
        pieces = [name[0], *(tail if holds_token else [tail])]
        encoded = [self._encode(piece, add_special_tokens=False) for piece in pieces]
        return tuple(chain(*encoded))

    def _encode(self, text: str, **options: Any) -> tuple[int, ...]:
        encode = self._encode_cached if len(text) <= _CACHED_LENGTH else self._encode_uncached
        return encode(text, **options)

    def _encode_uncached(self, text: str, **options: Any) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, **options))


class MarkedBackend(MarkedTokenizer):
    """A ``MarkedTokenizer`` that wraps a ``tokenizers.Tokenizer``. Its results have ``ids``.

    Since version 0.6, the Cookbook's Qwen3 renderers encode message contents with such a tokenizer.
    """

    def encode(self, text: str, **options: Any) -> Any:
        """Return an object whose ``ids`` are the token ids of ``text``."""
        return SimpleNamespace(ids=super().encode(text, **options))

    def _encode_uncached(self, text: str, **options: Any) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, **options).ids)
