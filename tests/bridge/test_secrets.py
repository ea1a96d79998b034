"""Secrets that this process knows, and texts without them.

1. Which variables are secrets: by their names, by passwords in their URLs.
2. What a text, a nested value or a command line is without them.
3. What is known changes with the environment, and with what ``keep_secret`` is told.
"""

import json
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

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

# -- 1. which --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SECRET.split())
def test_a_name_that_looks_like_a_keys_makes_a_secret(name: str) -> None:
    assert is_secret(name, VALUE)


@pytest.mark.parametrize("name", OTHERS.split())
def test_other_names_do_not(name: str) -> None:
    assert not is_secret(name, VALUE)


def test_a_value_that_could_be_anything_is_none(tmp_path: Path) -> None:
    for value in ("", "1", "true", "disabled", "required", "32768", "10000000", str(tmp_path)):
        assert not is_secret("AUTH_TOKEN", value)
    assert is_secret("AUTH_TOKEN", "disabled1")
    assert is_secret("AUTH_TOKEN", "longenoughtobeone")
    assert is_secret("AUTH_TOKEN", "123456789012")


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("postgres://me:s3cret-word@host:5432/db", "s3cret-word"),
        ("https://ghp_0123456789@github.com/a/b", "ghp_0123456789"),
        ("redis://:p%40ssw0rd-1@host", "p@ssw0rd-1"),
        ("redis://:p%40ssw0rd-1@host", "p%40ssw0rd-1"),
    ],
)
def test_a_password_in_a_url_is_one_whatever_the_name(
    url: str, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE", url)

    assert redacted(f"at {secret}!") == "at [SERVICE]!"
    assert secret not in redacted(f"{url} and {url}")


# -- 2. without them -------------------------------------------------------------------------------


@pytest.mark.parametrize("spell", [str, repr, json.dumps, lambda text: quote(text, safe="")])
def test_a_secret_is_found_as_json_repr_and_urls_spell_it(
    spell: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "line one\n\"two\" 'three' \\four/füünf+"
    monkeypatch.setenv("MY_SECRET", secret)
    text = f"it is {spell(secret)}."  # type: ignore[operator]

    assert redacted(text).strip("\"'") != text.strip("\"'")
    assert "three" not in redacted(text)
    assert "[MY_SECRET]" in redacted(text)


def test_a_longer_secret_goes_before_one_that_begins_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", VALUE)
    monkeypatch.setenv("B_KEY", f"{VALUE}-and-more")

    assert redacted(f"{VALUE}-and-more {VALUE}") == "[B_KEY] [A_KEY]"


def test_a_rollouts_key_is_known_by_its_form() -> None:
    key = f"evert-{'aB3_-dE7' * 4}"

    assert redacted(f"key={key}, evert-tiny, evert-{'x' * 40}") == (
        f"key=[ROLLOUT_KEY], evert-tiny, evert-{'x' * 40}"
    )


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("at http://bob:hunter2hunter2@db/x", "at http://bob:[PASSWORD]@db/x"),
        ("pg://me:p%40ss-w0rd@h, redis://:an0ther-one@h", "pg://me:[PASSWORD]@h, redis://:[PASSWORD]@h"),
        ('{"a": "https://me:p@ss-w0rd1@h"}', '{"a": "https://me:[PASSWORD]@h"}'),
        *[(text, text) for text in (
            "https://me:short@h https://h:8080/@me a://b",
            "https://host/x?mail=me:of-host-1@h and a:long-word-2@b",
        )],
    ],
)  # fmt: skip
def test_a_password_in_a_url_is_known_by_its_form(text: str, clean: str) -> None:
    assert redacted(text) == clean


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://h/v1?q=1&api_key=0ther-word#m", "https://h/v1?q=1&api_key=[api_key]#m"),
        ("url: /traces?token=0ther-word", "url: /traces?token=[token]"),
        ('{"a": "?x&amp;Auth-Token=0ther-word"}', '{"a": "?x&amp;Auth-Token=[Auth-Token]"}'),
        *[(text, text) for text in ("https://h?page=0ther-word&token=9", "token=0ther-word")],
    ],
)  # fmt: skip
def test_a_key_in_a_urls_query_is_known_by_its_name(text: str, clean: str) -> None:
    assert redacted(text) == clean


def test_any_text_can_be_written_when_it_is_redacted() -> None:
    assert redacted("a\ud800b\udfff é") == "a\ufffdb\ufffd é"
    assert redacted_logs({"\ud800": "\ud800", "n": 1}) == {"\ufffd": "\ufffd", "n": 1}


def test_a_key_that_is_a_urls_user_is_known_in_settings() -> None:
    tree = {"base_url": "https://ghp_0123456789@host/v1"}

    assert redacted_tree(tree) == {"base_url": "https://[base_url]@host/v1"}


def test_a_long_text_of_urls_takes_no_time() -> None:
    text = "http://" + "a:" * 200_000 + "://b@" * 1000

    assert len(redacted(text)) > 100


def test_the_end_of_a_text_holds_no_end_of_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", VALUE)
    text = f"{'x' * 100}{VALUE} end"

    assert redacted_end(text, 8) == "KEY] end"
    assert redacted_end("short", 8) == "short"


def test_nested_values_keep_their_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", VALUE)
    tree = {
        "text": f"<{VALUE}>",
        "list": [VALUE, 1, None, (VALUE,)],
        "inner": {"api_key": "another-0ne", "api_key_env": "OPENAI_API_KEY", VALUE: 1.5},
    }

    assert redacted_tree(tree) == {
        "text": "<[A_KEY]>",
        "list": ["[A_KEY]", 1, None, ("[A_KEY]",)],
        "inner": {"api_key": "[api_key]", "api_key_env": "OPENAI_API_KEY", "[A_KEY]": 1.5},
    }


def test_a_command_line_keeps_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", VALUE)
    line = ["evert", "train", "api_key=another-0ne", f"base_url=http://me:{VALUE}@host", "steps=3"]

    assert redacted_arguments(line) == [
        *("evert", "train", "api_key=[api_key]", "base_url=http://me:[A_KEY]@host", "steps=3")
    ]


# -- 3. what is known ------------------------------------------------------------------------------


def test_what_is_known_changes_with_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = redacted(VALUE)
    monkeypatch.setenv("LATE_TOKEN", VALUE)
    during = redacted(VALUE)
    monkeypatch.delenv("LATE_TOKEN")

    assert (before, during, redacted(VALUE)) == (VALUE, "[LATE_TOKEN]", VALUE)


def test_a_text_that_is_looked_through_meanwhile_loses_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Text(str):
        """One that takes so long to look through that the environment changes."""

        def __contains__(self, spelling: str) -> bool:  # type: ignore[override]
            monkeypatch.delenv("LONGER_TOKEN", raising=False)
            redacted("another thread's")
            return super().__contains__(spelling)

    monkeypatch.setenv("LONGER_TOKEN", "s3cret-and-longer-than-the-other")
    monkeypatch.setenv("OTHER_TOKEN", "s3cret-that-stays")
    assert redacted(Text("it is s3cret-that-stays")) == "it is [OTHER_TOKEN]"


def test_what_the_process_was_started_with_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["evert", "--judge.api_key=another-0ne"])
    monkeypatch.setenv("NEW_VARIABLE", "x")

    assert redacted("<another-0ne>") == "<[judge.api_key]>"


def test_what_it_is_told_is_known_from_then_on() -> None:
    keep_secret("COLOUR", "told-to-nobody-1")
    keep_secret("MY_TOKEN", "told-to-nobody-2")

    assert redacted("told-to-nobody-1 told-to-nobody-2") == "told-to-nobody-1 [MY_TOKEN]"


def test_a_text_without_secrets_is_the_same_object() -> None:
    text = "nothing to hide " * 100

    assert redacted(text) is text
