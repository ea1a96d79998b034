"""Records of served conversations, and the rewards that programs add later."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import openai
from tests.kit import Patch, until
from tests.trainers.serving.conftest import sdks

from evert import read_records
from evert.bridge.records.record import RolloutRecord
from evert.bridge.tokens.renderer import prompt_renderer
from evert.trainers.serving import recording
from evert.trainers.serving.chat import ChatModel
from evert.trainers.serving.recording import ServedRecords
from evert.trainers.serving.service import PolicyService

SAY = [{"role": "user", "content": "Let's play a game. Say you are 7."}]


def post_feedback(service: PolicyService, content: str) -> httpx.Response:
    key = {"authorization": f"Bearer {service.key}"}
    return httpx.post(f"{service.url}/feedback", content=content, headers=key)


class Serving:
    """A service that serves the bundled base model and records to a folder."""

    def __init__(self, client: Any, folder: Path, **options: Any) -> None:
        self.folder = folder
        keep = options.pop("keep", 2**20)
        self.service = PolicyService()
        sample = self.service.sample(client)
        model = ChatModel(sample, prompt_renderer(None), context=8192, max_tokens=8, keep=keep)
        self.records = ServedRecords(folder, {"tiny": model.renderer}, **options)
        self.service.chat({"tiny": model}, self.records)
        self.sdk = openai.OpenAI(base_url=self.service.url, api_key=self.service.key)

    def ask(self, messages: list[Any], **fields: Any) -> Any:
        return self.sdk.chat.completions.create(model="tiny", messages=messages, **fields)

    def feedback(self, **body: Any) -> httpx.Response:
        return post_feedback(self.service, json.dumps(body))

    def __enter__(self) -> "Serving":
        return self

    def __exit__(self, *error: object) -> None:
        for part in (self.sdk, self.service, self.records):
            part.close()

    def recorded(self) -> list[RolloutRecord]:
        self.records._writer.submit(lambda: None).result()  # wait until all records are written
        return [*read_records(self.folder)]


def test_a_served_conversation_is_recorded_with_exact_tokens_and_later_rewards(
    client: Any, tmp_path: Path
) -> None:
    with Serving(client, tmp_path) as serving:
        messages, replies = [*SAY], []
        for turn in range(3):
            replies.append(serving.ask(messages, logprobs=True, seed=turn))
            messages += [replies[-1].choices[0].message, {"role": "user", "content": f"And {turn}"}]
        early = serving.feedback(id=replies[0].id, reward=-0.5)
        serving.feedback(id=replies[2].id, reward=7)
        serving.feedback(id=replies[2].id, reward=1)
    [record] = read_records(tmp_path)
    late = asyncio.run(ServedRecords(tmp_path, {}).reward(replies[1].id, 0.25))

    assert early.json() == {"id": replies[0].id, "reward": -0.5, "recorded": True}
    assert late
    assert record.reward == 0.5
    assert next(iter(read_records(tmp_path))).reward == 0.75
    texts = [message["content"] for message in record.messages()]
    assert texts[0] == SAY[0]["content"]
    assert texts[2] == "And 0"
    assert texts[1::2] == [reply.choices[0].message.content for reply in replies]
    for turn, reply in enumerate(replies):
        action = record.action(turn)
        assert action.logprobs == [token.logprob for token in reply.choices[0].logprobs.content]
        if turn:
            before = [*record.prompts[turn - 1], *record.action(turn - 1).tokens]
            assert record.prompts[turn][: len(before)] == before
    [again] = read_records(tmp_path)
    assert [step["reward"] for step in again.row["steps"]] == [-0.5, 0.25, 1.0]
    assert again.metrics["feedback"] == 3.0


def test_every_api_gives_ids_that_take_feedback(client: Any, tmp_path: Path) -> None:
    with Serving(client, tmp_path) as serving:
        text = SAY[0]["content"]
        with sdks(serving.service) as (open_ai, claude, gemini):
            ids = [
                serving.ask(SAY).id,
                [*serving.ask(SAY, stream=True)][-1].id,
                open_ai.responses.create(model="tiny", input=text).id,
                claude.messages.create(model="tiny", max_tokens=8, messages=SAY).id,
                gemini.models.generate_content(model="tiny", contents=text).response_id,
            ]
        assert len({*ids}) == 5
        for number, reply in enumerate(ids):
            assert serving.feedback(id=reply, reward=number).json()["recorded"]
    assert sorted(record.reward for record in read_records(tmp_path)) == [0, 1, 2, 3, 4]


BAD: list[tuple[dict[str, Any], int, str]] = [
    ({}, 400, 'expected {"id"'),
    ({"id": 5, "reward": 1}, 400, 'expected {"id"'),
    ({"id": "chatcmpl-1", "reward": "good"}, 400, 'expected {"id"'),
    ({"id": "chatcmpl-1", "reward": True}, 400, 'expected {"id"'),
    ({"id": "chatcmpl-1", "reward": 1e999}, 400, 'expected {"id"'),
    ({"id": "chatcmpl-1", "reward": 1}, 404, "No recorded reply has the id 'chatcmpl-1'"),
    ({"id": "chatcmpl-0123456789ab0", "reward": 1}, 404, "No recorded reply"),
]


def test_wrong_feedback_is_refused_and_says_what_is_expected(client: Any, tmp_path: Path) -> None:
    with Serving(client, tmp_path) as serving:
        for body, status, words in BAD:
            content = json.dumps(body).replace("Infinity", "1e999")
            answer = post_feedback(serving.service, content)
            assert answer.status_code == status, body
            assert words in answer.json()["error"]["message"]


def test_without_records_feedback_is_refused(client: Any, service: PolicyService) -> None:
    service.chat({"tiny": ChatModel(service.sample(client), prompt_renderer(None),
                                    context=8192, max_tokens=8)})  # fmt: skip
    answer = post_feedback(service, '{"id": "chatcmpl-0123456789ab0", "reward": 1}')
    assert answer.status_code == 400
    assert "record=FOLDER" in answer.json()["error"]["message"]


def test_the_rest_of_an_idle_conversation_becomes_a_separate_record(
    client: Any, tmp_path: Path
) -> None:
    with Serving(client, tmp_path, idle=0.05) as serving:
        first = serving.ask(SAY)
        asyncio.run(until(serving.records._files))
        serving.recorded()
        rest = [*SAY, first.choices[0].message, {"role": "user", "content": "Why?"}]
        serving.ask(rest)
    assert [record.turns for record in read_records(tmp_path)] == [1, 1]
    *_, last = read_records(tmp_path)
    assert [message["content"] for message in last.asked(0)][::2] == [SAY[0]["content"], "Why?"]

    with Serving(client, tmp_path / "small", keep=700) as serving:
        for number in range(4):
            serving.ask([{"role": "user", "content": f"Say you are {number}."}])
        assert len(serving.recorded()) == 3


def test_a_fraction_is_recorded_and_all_feedback_is_accepted(client: Any, tmp_path: Path) -> None:
    with Serving(client, tmp_path, share=0.5) as serving:
        replies = [serving.ask([{"role": "user", "content": f"Say {n}."}]) for n in range(6)]
        answers = [serving.feedback(id=reply.id, reward=1) for reply in replies]
        assert [answer.status_code for answer in answers] == [200] * 6
        assert [answer.json()["recorded"] for answer in answers] == [True, False] * 3
    assert len([*read_records(tmp_path)]) == 3


def test_record_files_are_rotated_and_the_oldest_are_deleted(
    client: Any, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(recording, "FILE", 4_000)
    with Serving(client, tmp_path, max_bytes=20_000, idle=0) as serving:
        for number in range(24):
            serving.ask([{"role": "user", "content": f"Say you are {number}."}])
        serving.recorded()
    files = sorted((tmp_path / "rollouts").iterdir())
    assert files[0].name > "000001.jsonl"
    assert len(files) > 2
    assert sum(file.stat().st_size for file in files) <= 20_000
    texts = [record.asked(0)[0]["content"] for record in read_records(tmp_path)]
    assert texts == [f"Say you are {number}." for number in range(24 - len(texts), 24)]


def test_the_machines_api_keys_are_not_recorded(
    client: Any, tmp_path: Path, monkeypatch: Patch
) -> None:
    secret = "sk-proj-" + "aB3" * 16
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    with Serving(client, tmp_path) as serving:
        serving.ask([{"role": "user", "content": f"My key is {secret}."}])
    text = "".join(file.read_text() for file in (tmp_path / "rollouts").iterdir())
    assert "My key is" in text
    assert secret not in text
