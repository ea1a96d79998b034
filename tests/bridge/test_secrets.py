"""Redacting the secrets that this process knows.

A variable is secret because of its name, or because its value is a URL with a password. Secrets are
removed from texts, nested values and command lines in every encoding. The set of known secrets
follows the environment and calls to ``keep_secret``.
"""

import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.kit import Patch

from evert.bridge import redaction
from evert.bridge.redaction import (
    is_secret,
    keep_secret,
    redacted,
    redacted_arguments,
    redacted_end,
    redacted_logs,
    redacted_tree,
)

VALUE = "s3ntinel/+=value"

SECRET = """
TINKER_API_KEY AWS_SECRET_ACCESS_KEY HF_TOKEN GITHUB_TOKEN WANDB_API_KEY OPENAI_APIKEY PGPASSWORD
MYSQL_PWD DB_PASS apiKey api-key auth NPM_CONFIG__AUTH SLACK_COOKIES KEY github_pat
AZURE_CLIENT_SECRET STRIPE_KEYS SSH_PASSPHRASE AWS_SESSION_TOKEN SENTRY_DSN
"""

OTHERS = """
PATH HOME TOKENIZERS_PARALLELISM MONKEYS_HOUSE api_key_env SSL_KEY_FILE PWD OLDPWD SSH_AUTH_SOCK
AUTHOR KEYBOARD PASSENGER COMPASS SECRETARY max_trajectory_tokens_name
"""


def test_a_plausible_value_in_a_variable_named_like_a_key_is_a_secret(tmp_path: Path) -> None:
    assert [name for name in SECRET.split() if not is_secret(name, VALUE)] == []
    assert [name for name in OTHERS.split() if is_secret(name, VALUE)] == []
    for value in ("", "1", "true", "disabled", "required", "32768", "10000000", str(tmp_path)):
        assert not is_secret("AUTH_TOKEN", value), value
    for value in ("disabled1", "longenoughtobeone", "123456789012"):
        assert is_secret("AUTH_TOKEN", value), value


def test_a_password_in_a_url_is_a_secret_whatever_the_variable_is_called(
    monkeypatch: Patch,
) -> None:
    for url, secret in (
        ("postgres://me:s3cret-word@host:5432/db", "s3cret-word"),
        ("https://ghp_0123456789@github.com/a/b", "ghp_0123456789"),
        ("redis://:p%40ssw0rd-1@host", "p@ssw0rd-1"),
        ("redis://:p%40ssw0rd-1@host", "p%40ssw0rd-1"),
    ):
        monkeypatch.setenv("SERVICE", url)
        assert redacted(f"at {secret}!") == "at [SERVICE]!"
        assert secret not in redacted(f"{url} and {url}")


def test_a_secret_is_redacted_in_its_json_repr_and_url_encodings(monkeypatch: Patch) -> None:
    secret = "line one\n\"two\" 'three' \\four/füünf+"
    monkeypatch.setenv("MY_SECRET", secret)
    for spelled in (secret, repr(secret), json.dumps(secret), quote(secret, safe="")):
        text = redacted(f"it is {spelled}.")
        assert "[MY_SECRET]" in text, spelled
        assert "three" not in text, spelled


KEY = f"evert-{'aB3_-dE7' * 4}"  # a rollout key
SAME = None
FORMS: list[tuple[str, str | None]] = [
    (f"key={KEY}, evert-tiny", "key=[ROLLOUT_KEY], evert-tiny"),
    (f"evert-tiny, evert-{'x' * 40}", SAME),
    ("at http://bob:hunter2hunter2@db/x", "at http://bob:[PASSWORD]@db/x"),
    ("pg://me:p%40ss-w0rd@h, redis://:an0ther-one@h", "pg://me:[PASSWORD]@h, redis://:[PASSWORD]@h"),
    ('{"a": "https://me:p@ss-w0rd1@h"}', '{"a": "https://me:[PASSWORD]@h"}'),
    ("https://me:short@h https://h:8080/@me a://b", SAME),
    ("https://host/x?mail=me:of-host-1@h and a:long-word-2@b", SAME),
    ("https://h/v1?q=1&api_key=0ther-word#m", "https://h/v1?q=1&api_key=[api_key]#m"),
    ("url: /traces?token=0ther-word", "url: /traces?token=[token]"),
    ('{"a": "?x&amp;Auth-Token=0ther-word"}', '{"a": "?x&amp;Auth-Token=[Auth-Token]"}'),
    ("https://h?page=0ther-word&token=9", SAME),
    ("token=0ther-word", SAME),
    ("a\ud800b\udfff é", "a\ufffdb\ufffd é"),  # surrogates are replaced, so the text can be encoded
]  # fmt: skip


@pytest.mark.parametrize(("text", "clean"), FORMS)
def test_keys_and_passwords_in_urls_are_recognised_by_their_format(text: Any, clean: Any) -> None:
    assert redacted(text) == (text if clean is None else clean)


def test_redacting_long_texts_is_fast_and_does_not_copy_clean_text() -> None:
    urls = "http://" + "a:" * 200_000 + "://b@" * 1000
    text = "nothing to hide " * 100

    assert len(redacted(urls)) > 100
    assert redacted(text) is text


def test_tails_nested_values_and_command_lines_are_redacted(monkeypatch: Patch) -> None:
    monkeypatch.setenv("A_KEY", VALUE)
    monkeypatch.setenv("B_KEY", f"{VALUE}-and-more")

    assert redacted(f"{VALUE}-and-more {VALUE}") == "[B_KEY] [A_KEY]", "longest match first"
    assert redacted_end(f"{'x' * 100}{VALUE} end", 8) == "KEY] end"
    assert redacted_end("short", 8) == "short"
    assert redacted_tree(
        {
            "text": f"<{VALUE}>",
            "list": [VALUE, 1, None, (VALUE,)],
            "inner": {"api_key": "another-0ne", "api_key_env": "OPENAI_API_KEY", VALUE: 1.5},
            "base_url": "https://ghp_0123456789@host/v1",
        }
    ) == {
        "text": "<[A_KEY]>",
        "list": ["[A_KEY]", 1, None, ("[A_KEY]",)],
        "inner": {"api_key": "[api_key]", "api_key_env": "OPENAI_API_KEY", "[A_KEY]": 1.5},
        "base_url": "https://[base_url]@host/v1",
    }
    assert redacted_logs({"\ud800": "\ud800", "n": 1}) == {"\ufffd": "\ufffd", "n": 1}
    line = ["evert", "train", "api_key=another-0ne", f"base_url=http://me:{VALUE}@host", "steps=3"]
    clean = ["evert", "train", "api_key=[api_key]", "base_url=http://me:[A_KEY]@host", "steps=3"]
    assert redacted_arguments(line) == clean


def test_known_secrets_follow_the_environment(monkeypatch: Patch) -> None:
    before = redacted(VALUE)
    monkeypatch.setenv("LATE_TOKEN", VALUE)
    during = redacted(VALUE)
    monkeypatch.delenv("LATE_TOKEN")

    assert (before, during, redacted(VALUE)) == (VALUE, "[LATE_TOKEN]", VALUE)


def test_changing_the_environment_during_redaction_reveals_no_secrets(monkeypatch: Patch) -> None:
    class Text(str):
        """A string that changes the environment while it is being searched."""

        def __contains__(self, spelling: str) -> bool:  # type: ignore[override]
            monkeypatch.delenv("LONGER_TOKEN", raising=False)
            redacted("another thread's")
            return super().__contains__(spelling)

    monkeypatch.setenv("LONGER_TOKEN", "s3cret-and-longer-than-the-other")
    monkeypatch.setenv("OTHER_TOKEN", "s3cret-that-stays")
    assert redacted(Text("it is s3cret-that-stays")) == "it is [OTHER_TOKEN]"


def test_a_secret_that_is_added_concurrently_is_redacted(monkeypatch: Patch) -> None:
    spellings = redaction._spellings

    def told_meanwhile(secret: str) -> set[str]:
        keep_secret("LATE_TOKEN", "told-meanwhile-1")
        return spellings(secret)

    monkeypatch.setattr(redaction, "_spellings", told_meanwhile)
    monkeypatch.setenv("EARLY_TOKEN", "known-already-1")
    redacted("")
    assert redacted("known-already-1 told-meanwhile-1") == "[EARLY_TOKEN] [LATE_TOKEN]"


def test_secrets_from_the_command_line_and_keep_secret_are_redacted(monkeypatch: Patch) -> None:
    monkeypatch.setattr(sys, "argv", ["evert", "--judge.api_key=another-0ne"])
    monkeypatch.setenv("NEW_VARIABLE", "x")
    assert redacted("<another-0ne>") == "<[judge.api_key]>"

    keep_secret("COLOUR", "told-to-nobody-1")
    keep_secret("MY_TOKEN", "told-to-nobody-2")
    assert redacted("told-to-nobody-1 told-to-nobody-2") == "told-to-nobody-1 [MY_TOKEN]"
