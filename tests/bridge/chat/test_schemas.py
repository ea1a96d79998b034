"""Checking a reply against a JSON schema is fast, even if the schema or reply is hostile."""

import json
import logging
import socket
from typing import Any

import pytest
from tests.kit import Logs

from evert.bridge.chat import schemas
from evert.bridge.chat.formats import LONGEST_CHECKED, ReplyFormat
from evert.bridge.chat.reply import Reply
from evert.bridge.chat.schemas import check_schema, first_error


def fits(schema: Any, value: Any) -> bool:
    return first_error(json.dumps(schema), value) is None


def nested(levels: int, leaf: Any) -> Any:
    for _ in range(levels):
        leaf = {"x": leaf}
    return leaf


PATTERNS = [
    (r"^[a-z]+\d{2,3}$", "ab12", "ab1"),
    ("b", "abc", "ac"),
    (r"^\p{L}+$", "Größe", "Größe 1"),
    (r"^[\u0041-\u005a\u00df]+$", "AZß", "az"),
    (r"^(?<year>\d{4})-\d\d$", "2024-05", "2024"),
    (r"^\d$", "5", "\u0665"),
    ("^a$", "a", "a\n"),
    ("^.$", "🐕", "🐕🐕"),
    # A backtracking regex engine would need exponential time for these.
    (r"^([a-z]+)+$", "a" * 40, "a" * 40 + "!"),
    (r"(.*a){20}$", "a" * 5000, "a" * 5000 + "!"),
    (r"(x+x+)+y", "x" * 20000 + "y", "x" * 20000),
]


@pytest.mark.parametrize(("pattern", "good", "bad"), PATTERNS)
def test_a_pattern_matches_anywhere_in_strings_and_property_names(
    pattern: Any, good: Any, bad: Any
) -> None:
    assert (fits({"pattern": pattern}, good), fits({"pattern": pattern}, bad)) == (True, False)
    assert fits({"pattern": pattern}, 5)
    closed = {"patternProperties": {pattern: {"type": "integer"}}, "additionalProperties": False}
    assert fits(closed, {good: 1}), pattern
    assert not fits(closed, {good: ""}), pattern
    assert not fits(closed, {bad: 1}), pattern


def test_an_error_names_its_location_and_reports_when_no_alternative_matches() -> None:
    people = {"items": {"properties": {"age": {"type": "integer"}}}}
    either = {"anyOf": [{"type": "integer"}, {"minimum": 3}], "allOf": [{"not": {"const": 9}}]}
    within = {"properties": {"x": either}}
    rows: list[tuple[Any, Any, str | None]] = [
        (people, [{"age": 7}] * 1000, None),
        (people, [{"age": 7}, {"age": "7"}], '$[1].age: "7" is not of type "integer"'),
        (within, {"x": 3.5}, None),
        (within, {"x": 1.5}, "$.x: the schema does not allow 1.5"),
        (within, {"x": 9}, '$.x: {"const":9} is not allowed for 9'),
        (
            {"properties": {"x": {"oneOf": either["anyOf"]}}},
            {"x": 4},
            "$.x: the schema does not al",
        ),
        ({"uniqueItems": True}, [1, True, "1", [1], 1.0], "$: [1,true,"),
        ({"properties": {"anyOf": {"type": "string"}}}, {"anyOf": 5}, "$.anyOf: 5 is not of type"),
        # Properties that one of the alternatives allows are not reported as unexpected.
        (
            {"anyOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
            {"a": 1, "b": 2},
            "$: Unevaluated properties are not allowed ('b' was unexpected)",
        ),
        # For a $ref into one of the alternatives, the error gives no location.
        ({**within, "items": {"$ref": "#/properties/x/anyOf/0"}}, [5.5], "$: it is not valid"),
        ({"allOf": [{"$ref": "#"}]}, 5, None),
        ({"type": "string"}, nested(20, 5), "$: it is not valid"),
        # Values in "const" and "enum" are not schemas, so they are reported verbatim.
        ({"const": {"anyOf": ["a"]}}, 5, '$: {"anyOf":["a"]} was expected'),
        ({"enum": [{"anyOf": ["a"], "allOf": 5}]}, 5, '$: 5 is not one of {"allOf":5,'),
        ({"dependentRequired": {"anyOf": ["a"]}}, {"anyOf": 5}, '$: "a" is a required property'),
    ]
    for schema, value, expected in rows:
        error = first_error(json.dumps(schema), value)
        assert (error or "").startswith(expected or "\0") or error is expected, (error, expected)


REFERENCE = {"$ref": "#/$defs/n"}
EITHER = [{"properties": {"x": REFERENCE, "op": {"const": number}}} for number in range(10)]
HOSTILE: list[tuple[Any, Any]] = [
    ({"pattern": "^(a+)+$"}, "a" * 50_000 + "!"),
    ({"uniqueItems": True}, [{"n": n} for n in range(100_000)] + [{"n": 3}]),
    ({**REFERENCE, "$defs": {"n": {"anyOf": EITHER}}}, nested(900, {"op": "no"})),
    ({**REFERENCE, "$defs": {"n": {"oneOf": EITHER}}}, nested(9, {"op": "no"})),
    ({**REFERENCE, "$defs": {"n": {"allOf": EITHER[:2]}}}, {**nested(900, {}), "op": "no"}),
    ({"items": {}, "unevaluatedItems": False, "maxItems": 1}, [0] * 50_000),
    ({"items": {"type": "integer"}}, ["x"] * 100_000),
]


def test_a_check_that_would_take_too_long_fails_with_an_error() -> None:
    for schema, value in HOSTILE:
        assert not fits(schema, value)


def test_a_very_long_reply_must_be_json_but_is_not_checked_against_the_schema() -> None:
    def problem(text: str) -> str | None:
        parsed: Any = {"role": "assistant", "content": text}
        reply = Reply(parsed, text, None, (), (), "stop", 3, 4)
        return ReplyFormat('{"type": "integer"}').problem(reply)

    assert "does not match" in str(problem(f'"{"x" * (LONGEST_CHECKED - 2)}"'))
    assert problem(f'"{"x" * LONGEST_CHECKED}"') is None
    assert "not JSON" in str(problem("x" * LONGEST_CHECKED * 2))


def test_a_schema_that_cannot_be_checked_accepts_any_reply_and_warns_once(caplog: Logs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.1)
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/x.json"
        rows = [
            ({"pattern": "^(?=a)"}, 'is not a "regex"'),
            ({"not": {"pattern": r"(a)\1"}}, 'is not a "regex"'),
            ({"type": "no such type"}, "no such type"),
            ({"$schema": address}, "Unknown meta-schema"),
            *(
                ({"$ref": reference}, "")
                for reference in (address, "file:///etc/hosts", "urn:x", "%")
            ),
            ({"$ref": "#/$defs/nowhere"}, "does not exist"),
            ({"$dynamicRef": "#nowhere"}, "does not exist"),
            ({"$id": address, "$defs": {"a": {"$ref": "y"}}}, "Retrieval is disabled"),
        ]
        schemas._warn.cache_clear()
        for schema, reason in rows:
            caplog.clear()
            with caplog.at_level(logging.WARNING, "evert.bridge.chat.schemas"):
                assert fits(schema, "a"), schema
                assert fits(schema, "b"), schema
            [message] = caplog.messages
            assert "Cannot validate with this JSON schema, so all replies are accepted" in message
            assert reason in message
            if schema != {"type": "no such type"}:
                check_schema(json.dumps(schema))
        with pytest.raises(TimeoutError):
            listening.accept()


def test_an_invalid_schema_is_rejected() -> None:
    for schema in (
        {"type": "no such type"},
        {"pattern": "("},
        {"$ref": 5},
        {"properties": {"x": 5}},
    ):
        with pytest.raises(ValueError, match=r"is not (valid|a|of type)"):
            check_schema(json.dumps(schema))
