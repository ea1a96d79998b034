"""Replaces keys and passwords in texts with marks such as ``[HF_TOKEN]``.

Text from outside evert is redacted before it goes into logs, errors, reports and run folders.
Secrets are

- values of environment variables and of ``name=value`` arguments, and those given to
  ``keep_secret``: the whole value if its name looks like a key's (``is_secret``), or the password
  if the value is a URL;
- rollout keys, and passwords in URLs (``://user:password@``), found by their form;
- URL query fields (``?api_key=``), found by their names.

A value is found in plain text, and as JSON, ``repr`` and URLs escape it, but not in other forms
(base64, a hash, fragments). Passwords under 8 characters and short plain words are not redacted,
because that would redact ordinary text.
"""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any
from urllib.parse import quote, unquote, urlsplit

SECRET_WORD = re.compile(
    r"[a-z]*(token|secret|password|passwd|credential|cookie)s?"
    r"|(api|access|auth|secret|private|master|license)?keys?|creds|passphrase|pass|pwd|auth|authorization|bearer|jwt|pat|sas|dsn|private"
)
"""A word that makes a name look like the name of a key."""

NO_SECRET = frozenset({"env", "file", "path", "dir", "folder", "name", "sock", "type", "url"})
"""If a name ends with one of these words, its value is a key's location or kind, not the key."""

FOLDERS = frozenset({"PWD", "OLDPWD"})

SHORTEST, SHORTEST_WORD = 8, 12
"""Minimum length of a secret, and of a secret that has only letters or only digits."""

ROLLOUT_KEY = re.compile(r"(?<![\w-])evert-[\w-]{32}(?![\w-])")
ROLLOUT_MARK = "[ROLLOUT_KEY]"

URL_PASSWORD = re.compile(r"(://[^\s/?#\"'<>\\:]*:)([^\s/?#\"'<>\\]+)(?=@)")
"""The user and the password of a URL."""

PASSWORD_MARK = "[PASSWORD]"
"""Replaces the password in a URL."""

URL_FIELD = re.compile(r"(?<=[?&;#])([\w.-]+)=([^\s&#\"'<>\\]{8,})")
"""A URL query field and its value."""

LONE = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair: text that contains one cannot be written to a file."""

LONGEST_KEY = 2**13
"""How many characters before the kept end of a text to redact too: a secret may begin there."""

_registered: dict[str, str] = {}
_marks: list[tuple[str, str]] = []  # each spelling of a secret with its mark, longest first
_variables: dict[Any, Any] = {}
"""The environment that ``_marks`` were made from, in the system's encoding."""


def is_secret(name: str, value: str) -> bool:
    """Whether a setting's or variable's name looks like a key's name, and its value like a key."""
    words = re.findall("[a-z0-9]+", re.sub("([a-z])([A-Z])", r"\1_\2", name).lower())
    return (
        any(SECRET_WORD.fullmatch(word) for word in words)
        and words[-1] not in NO_SECRET
        and name not in FOLDERS
        and "://" not in value
        and _could_be(value)
    )


def keep_secret(name: str, value: str) -> None:
    """Redact a value from now on if its name looks like a key's; if it is a URL, its password."""
    if _registered.get(name) != value and [*_secrets({name: value}.items())]:
        _registered[name] = value
        _variables.clear()


def redacted(text: str) -> str:
    """Return the text with a mark in place of every secret that this process knows."""
    text = str.__str__(text)  # an agent's subclass of str may do anything
    if not text.isascii():
        text = LONE.sub("\ufffd", text)
    present = os.environ._data  # type: ignore[attr-defined]  # decoding takes longer
    if present != _variables:
        _learn(present)
    for spelling, mark in _marks:
        if spelling in text:
            text = text.replace(spelling, mark)
    if "://" in text and "@" in text:
        text = URL_PASSWORD.sub(_without_password, text)
    if "=" in text:
        text = URL_FIELD.sub(_without_value, text)
    return ROLLOUT_KEY.sub(ROLLOUT_MARK, text) if "evert-" in text else text


def _without_password(match: re.Match[str]) -> str:
    return match[1] + (PASSWORD_MARK if _could_be(match[2]) else match[2])


def _without_value(match: re.Match[str]) -> str:
    name, value = match.groups()
    return f"{name}=[{name}]" if is_secret(name, value) else match[0]


def redacted_end(text: str, size: int) -> str:
    """Return the last ``size`` characters of a text, redacted before cutting."""
    return redacted(text[-size - LONGEST_KEY :])[-size:]


def redacted_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return an agent's logs, redacted by their text only, because the agent chooses the names."""
    return {
        redacted(name): redacted(value) if isinstance(value, str) else value
        for name, value in logs.items()
    }


def redacted_tree(value: Any, name: str = "") -> Any:
    """Return the value with its strings redacted; a string named like a key is fully replaced."""
    if isinstance(value, str):
        if (secret := _of_url(value)) is not None:
            value = value.replace(secret, f"[{name}]")
        return f"[{name}]" if is_secret(name, value) else redacted(value)
    if isinstance(value, Mapping):
        return {redacted_tree(key): redacted_tree(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(redacted_tree(item, name) for item in value)
    return value


def redacted_arguments(arguments: Sequence[str]) -> list[str]:
    """Return a command line, redacted; ``name=value`` arguments are also redacted by name."""
    return [
        f"{name}={redacted_tree(value, name)}" if equals else redacted(name)
        for name, equals, value in (argument.partition("=") for argument in arguments)
    ]


# -- the known secrets -----------------------------------------------------------------------------


def _learn(present: Mapping[Any, Any]) -> None:
    """Find the secrets again. Concurrent calls find the same ones; readers keep the old list."""
    global _marks
    snapshot, registered = dict(present), dict(_registered)
    parts = (argument.partition("=") for argument in sys.argv)
    arguments = ((name, value) for name, _, value in parts)
    marks: dict[str, str] = {}
    for name, secret in _secrets(chain(os.environ.copy().items(), arguments, registered.items())):
        for spelling in _spellings(secret):
            marks.setdefault(spelling, f"[{name}]")
    _marks = sorted(marks.items(), key=lambda pair: -len(pair[0]))
    _variables.clear()
    if registered == _registered:  # else a secret was added meanwhile
        _variables.update(snapshot)


def _secrets(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for name, value in pairs:
        name = name.lstrip("-")
        if is_secret(name, value):
            yield name, value
        elif (secret := _of_url(value)) is not None:
            yield name, secret


def _of_url(value: str) -> str | None:
    """Return the password in a URL, or else the user name, which may be a key."""
    if "://" not in value or "@" not in value:
        return None
    try:
        url = urlsplit(value)
        secret = url.password or url.username or ""
    except ValueError:
        return None
    return secret if _could_be(secret) else None


def _could_be(value: str) -> bool:
    shortest = SHORTEST_WORD if value.isalpha() or value.isdigit() else SHORTEST
    return len(value) >= shortest and not ("/" in value and os.path.exists(value))


def _spellings(secret: str) -> set[str]:
    plain = {secret, unquote(secret)}
    as_utf8 = partial(json.dumps, ensure_ascii=False)
    spelled = {spell(text) for text in plain for spell in (json.dumps, repr, as_utf8)}
    return {*plain, *(text[1:-1] for text in spelled), *(quote(text, safe="") for text in plain)}
