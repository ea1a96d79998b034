"""What is Gemini's alone: the path, names with underscores, thoughts, streams, and ids of calls.

What all four APIs keep is in ``test_contract.py``.
"""

from dataclasses import replace
from typing import Any

from google.genai import types
from tests.bridge.dialects.apis import GEMINI, HI_PARTS, REPLIES, Fields, reply

from evert.bridge.chat.reply import TokenLogprob
from evert.bridge.clients.dialects.gemini import Gemini

WITH_THOUGHTS = {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}}


def written(said: Any, **body: Any) -> Fields:
    return Gemini("policy").write(said, GEMINI.read(), "1", body)


def typed(written: Fields) -> types.GenerateContentResponse:
    """The SDK's own class, which knows every field."""
    response = types.GenerateContentResponse.model_validate(written)
    assert response.model_dump(mode="json", by_alias=True, exclude_none=True) == written
    return response


def test_the_path_says_which_model_is_asked_and_whether_for_a_stream() -> None:
    for path, model, stream in [
        ("/v1beta/models/policy:generateContent", "policy", False),
        ("/v1beta/models/gemini-2.5-flash:streamGenerateContent", "gemini-2.5-flash", True),
        ("/v1beta/models/policy:countTokens", "policy", False),
        ("/v1beta/models/evert/buyer:generateContent", "evert/buyer", False),
        ("/v1beta/models/qwen:8b:generateContent", "qwen:8b", False),
        ("/v1/tunedModels/policy:generateContent", "policy", False),
        ("/v1beta1/projects/p/publishers/google/models/policy:generateContent", "policy", False),
    ]:
        body = {"contents": [HI_PARTS], "model": "another", "stream": None}
        addressed = Gemini("policy").addressed(path, body)
        assert addressed == {"contents": [HI_PARTS], "model": model, "stream": stream}, path


def test_a_request_may_be_counted_as_a_whole() -> None:
    whole = {"model": "models/policy", "contents": [HI_PARTS], "systemInstruction": {"parts": []}}
    dialect = Gemini("policy")
    body = dialect.addressed("/v1/models/policy:countTokens", {"generateContentRequest": whole})

    assert body == {**whole, "model": "policy", "stream": False}
    assert dialect.counted(7) == {"totalTokens": 7}


def test_the_events_put_together_are_the_whole_answer() -> None:
    for row, said in REPLIES.items():
        whole = written(said, **WITH_THOUGHTS)
        events = [*Gemini("policy").events(whole, WITH_THOUGHTS)]

        *earlier, last = [typed(event) for event in events]
        ends = [one.finish_reason for event in earlier for one in event.candidates or ()]
        assert {*ends} <= {None}, row
        assert not any(event.usage_metadata for event in earlier), row
        assert {**events[-1], "candidates": None} == {**whole, "candidates": None}, row
        assert last.candidates is not None
        assert last.candidates[0].finish_reason == whole["candidates"][0]["finishReason"], row
        contents = [event["candidates"][0]["content"] for event in events]
        assert all(content["parts"] for content in contents), row  # the SDK's chats drop empty ones
        together = GEMINI.read(contents=[HI_PARTS, *contents])
        assert together == GEMINI.read(contents=[HI_PARTS, whole["candidates"][0]["content"]]), row


def test_thoughts_are_shown_to_who_asks_for_them() -> None:
    for config, shown in [
        ({"includeThoughts": True}, True),
        ({"include_thoughts": True}, True),
        ({"includeThoughts": False}, False),
        ({"thinkingBudget": 100}, False),
        (5, False),
    ]:
        whole = written(reply(reasoning="Hm."), generationConfig={"thinkingConfig": config})
        thoughts = [{"text": "Hm.", "thought": True}] if shown else []
        expected = [*thoughts, {"text": "Hello."}]
        assert whole["candidates"][0]["content"]["parts"] == expected, config


def test_log_probabilities_stand_beside_the_parts_and_at_the_end_of_a_stream() -> None:
    tokens = (TokenLogprob("Hm.", -1.5, b"Hm."), TokenLogprob("The quick brown", -2.0, None))
    whole = written(replace(reply("The quick brown fox"), logprobs=tokens))
    listed = [{"token": one.text, "logProbability": one.logprob} for one in tokens]

    typed(whole)
    assert whole["candidates"][0]["logprobsResult"] == {"chosenCandidates": listed}
    pieces = [event["candidates"][0] for event in Gemini("policy").events(whole, {})]
    found = [piece.get("logprobsResult") for piece in pieces]
    assert found == [None] * (len(pieces) - 1) + [{"chosenCandidates": listed}]
    assert len(pieces) > 1
