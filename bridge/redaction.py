"""Replaces keys and passwords in text with placeholders such as ``[HF_TOKEN]``.

Any text that comes from outside evert is redacted before it is written to logs, errors, reports or
run folders. The following count as secrets:

- values of environment variables and of ``name=value`` command-line arguments, and values passed to
  ``keep_secret``. If the value is a URL, only its password is a secret. Any other value is a secret
  if its name looks like the name of a key (``is_secret``);
- rollout keys, and passwords in URLs (``://user:password@``), recognised by their format;
- URL query fields (``?api_key=``), recognised by their names.

A secret is found in plain text and in the escaped forms that JSON, ``repr`` and URLs use, but not
in other encodings (base64, hashes, fragments). Passwords shorter than 8 characters and short plain
words are not redacted, because ordinary text would be redacted too.
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
"""Words that mark a name as the name of a key."""

NO_SECRET = frozenset({"env", "file", "path", "dir", "folder", "name", "sock", "type", "url"})
"""If a name ends with one of these words, its value is the location or type of a key, not a key."""

FOLDERS = frozenset({"PWD", "OLDPWD"})

SHORTEST, SHORTEST_WORD = 8, 12
"""Minimum length of a secret, and of a secret that consists only of letters or only of digits."""

ROLLOUT_KEY = re.compile(r"(?<![\w-])evert-[\w-]{32}(?![\w-])")
ROLLOUT_MARK = "[ROLLOUT_KEY]"

URL_PASSWORD = re.compile(r"(://[^\s/?#\"'<>\\:]*:)([^\s/?#\"'<>\\]+)(?=@)")
"""The user name and password in a URL."""

PASSWORD_MARK = "[PASSWORD]"
"""Replaces the password in a URL."""

URL_FIELD = re.compile(r"(?<=[?&;#])([\w.-]+)=([^\s&#\"'<>\\]{8,})")
"""A URL query field and its value."""

LONE = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair. Text that contains one cannot be written to a UTF-8 file."""

LONGEST_KEY = 2**13
"""Number of characters before the kept text in which to look for the start of a secret."""

_registered: dict[str, str] = {}
_marks: list[tuple[str, str]] = []  # (spelling of a secret, placeholder), longest first
_variables: dict[Any, Any] = {}
"""The environment from which ``_marks`` was built, in the system's encoding."""


def is_secret(name: str, value: str) -> bool:
    """Return whether a setting or variable is a secret, judging by its name and value."""
    words = re.findall("[a-z0-9]+", re.sub("([a-z])([A-Z])", r"\1_\2", name).lower())
    return (
        any(SECRET_WORD.fullmatch(word) for word in words)
        and words[-1] not in NO_SECRET
        and name not in FOLDERS
        and "://" not in value
        and _could_be(value)
    )


def keep_secret(name: str, value: str) -> None:
    """Redact a value from now on if its name looks like the name of a key.

    If the value is a URL, only its password is redacted, whatever the name.
    """
    if _registered.get(name) != value and [*_secrets({name: value}.items())]:
        _registered[name] = value
        _variables.clear()


def redacted(text: str) -> str:
    """Replace every secret that this process knows with a placeholder."""
    text = str.__str__(text)  # an agent may pass a str subclass with overridden methods
    if not text.isascii():
        text = LONE.sub("\ufffd", text)
    present = os.environ._data  # type: ignore[attr-defined]  # avoids decoding all variables
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
    """Return the last ``size`` characters of a text, redacted before it is cut."""
    return redacted(text[-size - LONGEST_KEY :])[-size:]


def redacted_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Redact an agent's logs. The entries' names don't matter, because agents may use any name."""
    return {
        redacted(name): redacted(value) if isinstance(value, str) else value
        for name, value in logs.items()
    }


def redacted_tree(value: Any, name: str = "") -> Any:
    """Redact a nested value. If a name looks like the name of a key, its value is replaced."""
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
    """Redact a command line. ``name=value`` arguments are also redacted based on their names."""
    return [
        f"{name}={redacted_tree(value, name)}" if equals else redacted(name)
        for name, equals, value in (argument.partition("=") for argument in arguments)
    ]


# -- the known secrets -----------------------------------------------------------------------------


def _learn(present: Mapping[Any, Any]) -> None:
    """Rebuild the list of secrets.

    Concurrent calls are safe: they build the same list, and readers keep using the old one.
    """
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
    if registered == _registered:  # no secret was added in the meantime
        _variables.update(snapshot)


def _secrets(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for name, value in pairs:
        name = name.lstrip("-")
        if is_secret(name, value):
            yield name, value
        elif (secret := _of_url(value)) is not None:
            yield name, secret


def _of_url(value: str) -> str | None:
    """Return a URL's password or, if there is none, the user name, which may be a key."""
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
