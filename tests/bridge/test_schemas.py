"""Schemas and replies of anybody's making, held against each other within limits.

Patterns mean what they mean in JSON schemas and none explodes; a schema that doubles the work at
each level ends; what is long is no work for the event loop; what cannot be checked is not held
against the policy.
"""

import asyncio
import json
import logging
from typing import Any

import pytest
from jsonschema import SchemaError
from tests.kit import ask, play
from tinker_cookbook.renderers.base import Message

from evert import AgentClient
from evert.bridge.chat import schemas
from evert.bridge.chat.formats import ReplyFormat
from evert.bridge.chat.reply import Reply
from evert.bridge.chat.schemas import TooLong, first_error, vet


def fits(schema: Any, value: Any, **options: Any) -> bool:
    return first_error(json.dumps(schema), value, **options) is None


def reply(text: str) -> Reply:
    parsed = Message(role="assistant", content=text)
    return Reply(parsed, text, None, (), (), "stop", 3, 4)


# -- patterns --------------------------------------------------------------------------------------


PATTERNS = [
    (r"^[a-z]+\d{2,3}$", "ab12", "ab1"),
    ("b", "abc", "ac"),
    (r"^\p{L}+$", "Größe", "Größe 1"),
    (r"^[\u0041-\u005a\u00df]+$", "AZß", "az"),
    (r"^a\\u0041$", r"a\u0041", "aA"),
    (r"^(?<year>\d{4})-\d\d$", "2024-05", "2024"),
    ("^a$", "a", "a\n"),
    (r"\/\-\.", "/-.", "x-."),
    ("^.$", "🐕", "🐕🐕"),
    # Half a surrogate pair is some character.
    ("^[^x]+$", "\ud800", "x"),
    ("^[^x]+$", "a\udc00b", "x"),
    ("^[a-z]+$", "a", "a\udc00b"),
]


def test_a_pattern_is_searched_for() -> None:
    for pattern, good, bad in PATTERNS:
        for schema in ({"pattern": pattern}, {"type": "string", "pattern": pattern}):
            assert (fits(schema, good), fits(schema, bad)) == (True, False), pattern
        assert fits({"pattern": pattern}, 5)
        of_names = {"patternProperties": {pattern: {"type": "integer"}}}
        assert fits(of_names, {good: 1, bad: ""}), pattern
        assert not fits(of_names, {good: ""}), pattern


def test_properties_that_a_pattern_matches_are_no_additional_ones() -> None:
    schema: Any = {"properties": {"x": {}}, "patternProperties": {"^n_": {}, "_n$": {}}}

    assert fits({**schema, "additionalProperties": False}, {"x": 1, "n_1": 1, "1_n": 1})
    assert not fits({**schema, "additionalProperties": False}, {"x": 1, "other": 1})
    assert fits({**schema, "additionalProperties": {"type": "null"}}, {"n_1": 1, "other": None})
    error = first_error(json.dumps({**schema, "additionalProperties": {"type": "null"}}), {"o": 1})
    assert error is not None
    assert error.json_path == "$.o"


EXPLOSIVE = [
    (r"^([a-z]+)+$", "a" * 40 + "!"),
    (r"^(a|a)*$", "a" * 40 + "!"),
    (r"^(\w+\s?)*$", "aaaa " * 30 + "!"),
    (r"(.*a){20}$", "a" * 5000 + "!"),
    (r"(x+x+)+y", "x" * 20000),
    (r"(a?){60}a{61}", "a" * 60),
]


def test_a_pattern_that_backtracks_for_ages_is_answered() -> None:
    for pattern, text in EXPLOSIVE:
        assert not fits({"pattern": pattern}, text)
        assert not fits({"propertyNames": {"pattern": pattern}}, {text: 1})
        of_names = {"patternProperties": {pattern: False}}
        assert fits(of_names, {text: 1})
        closed = {"patternProperties": {pattern: {}}, "additionalProperties": False}
        assert not fits(closed, {text: 1})


async def test_the_loop_goes_on_under_an_env_whose_agent_asks_for_it() -> None:
    async def agent(client: AgentClient) -> float:
        for pattern, _ in EXPLOSIVE:
            wanted = {"name": "s", "schema": {"type": "string", "pattern": pattern}}
            await ask(client, response_format={"type": "json_schema", "json_schema": wanted})
        return 1.0

    trajectory = await play(agent, *(json.dumps(text) for _, text in EXPLOSIVE), format_retries=0)
    assert [turn.metrics["format_error"] for turn in trajectory.transitions] == [1.0] * 6


# -- schemas that explode --------------------------------------------------------------------------


def doubling(keyword: str, levels: int = 40) -> dict[str, Any]:
    """Each level holds the next one twice."""
    definitions: dict[str, Any] = {"0": {"type": "integer"}}
    for level in range(1, levels + 1):
        before = {"$ref": f"#/$defs/{level - 1}"}
        definitions[str(level)] = {keyword: [before, {"title": "again", **before}]}
    return {"$ref": f"#/$defs/{levels}", "$defs": definitions}


IN_DEPTH = {
    "$ref": "#/$defs/n",
    "$defs": {
        "n": {
            "anyOf": [
                {"properties": {"x": {"$ref": "#/$defs/n"}}, "required": ["y"]},
                {"properties": {"x": {"$ref": "#/$defs/n"}}, "required": ["z"]},
            ]
        }
    },
}


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"x": value}
    return value


DOUBLING: list[tuple[dict[str, Any], Any]] = [
    (doubling("allOf"), 5),
    (doubling("anyOf"), "no"),
    (doubling("oneOf"), 5),
    (IN_DEPTH, nested(60)),
    ({"not": {"$ref": "#/$defs/40"}, "$defs": doubling("allOf")["$defs"]}, 5),
    ({"unevaluatedProperties": False, **doubling("anyOf")}, {}),
]


def test_a_schema_that_doubles_at_each_level_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(schemas, "MOST_SECONDS", 0.1)
    schemas._warned.clear()
    for number, (schema, value) in enumerate(DOUBLING):
        caplog.clear()
        with pytest.raises(TooLong):
            fits(schema, value, hasty=True)
        fits(schema, value)
        told = "cannot be checked, so every reply fits it: it takes too long"
        assert told in caplog.text, number


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_a_value_fits_one_of_some_schemas(keyword: str) -> None:
    schema = {keyword: [{"type": "integer"}, {"minimum": 3}, {"const": "a"}]}

    assert fits(schema, 1)
    assert fits(schema, 3.5)
    error = first_error(json.dumps({"properties": {"x": schema}}), {"x": 1.5})
    assert error is not None
    assert error.json_path == "$.x"
    assert error.message == "1.5 is not valid under any of the given schemas"
    assert not error.context
    assert fits(schema, 4) == (keyword == "anyOf")


def test_a_long_array_has_unique_items_or_not() -> None:
    items: list[Any] = [{"number": number} for number in range(20_000)]
    items += [*range(20_000), None, True, False, 0.5, "1", [1], [True], {"number": True}]

    assert fits({"uniqueItems": True}, items)
    assert not fits({"uniqueItems": True}, [*items, {"number": 3}])
    assert not fits({"uniqueItems": True}, [*items, 1.0])
    assert not fits({"uniqueItems": True}, [*items, [1]])
    assert fits({"uniqueItems": False}, [1, 1])
    assert fits({"uniqueItems": True}, "aa")


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {}, "unevaluatedItems": False}, [0] * 50_000),
        ({"unevaluatedProperties": {}}, {str(number): 0 for number in range(50_000)}),
        (
            {"patternProperties": {f"{n}$": {} for n in range(1000)}},
            {str(n): 0 for n in range(9999)},
        ),
        ({"pattern": r"(x|y|[a-w]).{900}[^xa]z"}, "xya" * 10_000),
    ],
    ids=["items", "properties", "patterns", "a large pattern"],
)
def test_sheer_size_is_no_work_for_the_event_loop(schema: Any, value: Any) -> None:
    with pytest.raises(TooLong):
        fits(schema, value, hasty=True)


def test_numbers_of_any_size_are_divided() -> None:
    for divisor in (10**300, 1e-300, 0.01, 1e300):
        for number in (10**4000, 1.5, 1e308, -(10**400)):
            fits({"multipleOf": divisor}, number, hasty=True)


# -- off the loop ----------------------------------------------------------------------------------

PEOPLE = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    },
}


@pytest.mark.parametrize("worst", [7, "seven"])
async def test_a_long_reply_is_checked_to_its_end_while_the_loop_goes_on(worst: Any) -> None:
    people: list[Any] = [{"name": "A", "age": 1}] * 4_000
    wanted, said = (
        ReplyFormat(json.dumps(PEOPLE)),
        reply(json.dumps([*people, {"name": "B", "age": worst}])),
    )

    with pytest.raises(TooLong):
        wanted.problem(said, hasty=True)
    checking = asyncio.create_task(wanted.complaint(said))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not checking.done()

    complaint = await checking
    if worst == 7:
        assert complaint is None
    else:
        assert complaint is not None
        assert "$[4000].age: 'seven' is not of type 'integer'" in complaint


async def test_a_short_check_needs_no_thread() -> None:
    checking = asyncio.create_task(ReplyFormat(json.dumps(PEOPLE)).complaint(reply("[]")))
    await asyncio.sleep(0)

    assert checking.done()
    assert await checking is None


def test_a_very_long_reply_is_not_even_parsed_on_the_loop() -> None:
    for text in ("[" + "1," * 60_000 + "1]", "x" * 200_000):
        with pytest.raises(TooLong):
            ReplyFormat("{}").problem(reply(text), hasty=True)


def test_a_reply_of_white_space_and_fences_is_looked_at_once() -> None:
    for filling in ("\n", " ", "\n \n", "`", "```\n"):
        for end in ("", "```", "x"):
            cleaned = ReplyFormat("{}").cleaned(reply("```json\n" + filling * 50_000 + end))
            assert len(cleaned.text) <= 50_000 * len(filling) + len("```json\n") + len(end)


# -- what cannot be checked ------------------------------------------------------------------------


UNCHECKED: list[tuple[dict[str, Any], str]] = [
    ({"pattern": "^(?=a)"}, "RE2, which tries patterns, does not know"),
    ({"pattern": r"(a)\1"}, "RE2, which tries patterns, does not know"),
    ({"not": {"pattern": "(?!a)b"}}, "invalid perl operator"),
    ({"pattern": "((a{0,100}){0,100}){0,100}"}, "invalid repetition size"),
    ({"pattern": "ab" * 600}, "a pattern of 1200 characters is too long to be tried"),
    (
        {"patternProperties": {"a": {}}, "unevaluatedProperties": False},
        "it has 'unevaluatedProperties' beside 'patternProperties'",
    ),
    ({"type": "no such type"}, "no such type"),
]


def test_what_cannot_be_checked_is_fitted_by_everything_and_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for schema, reason in UNCHECKED:
        schemas._warned.clear()
        caplog.clear()
        with caplog.at_level(logging.WARNING, "evert.bridge.chat.schemas"):
            for value in ("a", "b", "b"):
                assert fits(schema, value), schema
                assert fits(schema, value, hasty=True), schema
        [message] = caplog.messages
        assert "A JSON schema cannot be checked, so every reply fits it" in message
        assert reason in message


def test_a_schema_is_checked_itself_unless_it_is_very_long() -> None:
    vet(json.dumps({"type": "object", "pattern": "^(?=a)"}))
    with pytest.raises(SchemaError, match="no such type"):
        vet(json.dumps({"type": "no such type"}))
    with pytest.raises(SchemaError):
        vet(json.dumps({"pattern": "("}))
    vet(json.dumps({"type": "no such type", "description": "x" * 10_000}))
