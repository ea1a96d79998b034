"""``TinkerModel``: frozen models sampled from weights that are given by name or path."""

import asyncio
import math
import pickle
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import openai
import pytest
import tinker
from tests.kit import ask
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, ScriptedPolicy, TinkerModel, embedded_engine
from evert.bridge.errors import InvalidModelError, RendererMismatchError
from evert.bridge.models.tinker_model import context_length_of, open_weights
from evert.bridge.tokens.bases import base_tokenizer, model_renderer
from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.common.errors import CheckpointError

GAME = [{"role": "user", "content": "Let's play a game. Say you are 7."}]


class Asking:
    """An agent that calls the simulated user twice and sends the replies to the policy."""

    def __init__(self, messages: list[dict[str, str]] = GAME, **fields: Any) -> None:
        self.messages, self.fields = messages, fields
        self.replies: list[Any] = []

    async def __call__(self, client: Any) -> float:
        for _ in range(2):
            request = {"model": "user", "messages": self.messages, **self.fields}
            self.replies.append(await client.chat.completions.create(**request))
        await client.chat.completions.create(messages=GAME)
        return 1.0

    @property
    def texts(self) -> list[str]:
        return [reply.choices[0].message.content or "" for reply in self.replies]


async def play(agent: Any, user: TinkerModel, **options: Any) -> Any:
    env = ChatAgentEnv(agent, models={"user": user}, **options)
    try:
        return await do_single_rollout(ScriptedPolicy(["yes"], options.get("renderer")), env)
    finally:
        await env.close()


async def saved(name: str) -> str:
    client = await tinker.ServiceClient().create_lora_training_client_async(name)
    return str((await (await client.save_weights_for_sampler_async("kept"))).path)


async def test_saved_weights_answer_when_given_by_path_or_folder(
    engine: Engine, tmp_path: Path
) -> None:
    base, by_path, by_folder = Asking(), Asking(), Asking()
    path = await saved("evert-tiny")
    folder = engine.store.folder(path)
    elsewhere = folder.rename(tmp_path / "moved")
    trajectory = await play(base, TinkerModel("evert-tiny", temperature=0))
    await play(by_folder, TinkerModel(model_path=str(elsewhere), temperature=0))
    elsewhere.rename(folder)
    await play(by_path, TinkerModel(model_path=path, temperature=0))
    assert base.texts == by_path.texts == by_folder.texts
    assert base.texts[0] == base.texts[1] != ""
    assert len(trajectory.transitions) == 1  # only the policy's call
    assert base.replies[0].usage.prompt_tokens == 21


async def test_a_frozen_models_seed_determines_its_replies(engine: Engine) -> None:
    def hot(seed: int | None) -> TinkerModel:
        return TinkerModel("evert-tiny", temperature=3.0, max_tokens=8, seed=seed)

    agents = [Asking() for _ in range(3)]
    for agent, seed in zip(agents, (1, 1, 2), strict=True):
        await play(agent, hot(seed))
    first, again, other = (agent.texts for agent in agents)

    assert first == again != other
    assert first[0] != first[1]


async def test_a_frozen_model_may_use_a_different_chat_format_than_the_policy(
    engine: Engine,
) -> None:
    plain, other = Asking(), Asking()
    renderer = get_renderer("role_colon", base_tokenizer(), model_name="evert-tiny")
    frozen = TinkerModel("evert-tiny", temperature=0)
    await play(plain, frozen)
    await play(other, frozen, renderer=renderer)
    await play(worse := Asking(max_tokens=20), TinkerModel("evert-tiny", None, "role_colon", 0))
    assert plain.texts == other.texts != worse.texts


async def test_a_model_without_a_template_needs_a_renderer(engine: Engine, tiny_model: str) -> None:
    with pytest.raises(RendererMismatchError, match="has no chat template"):
        await open_weights(TinkerModel(tiny_model))
    with pytest.raises(
        InvalidModelError, match="recommend a renderer for the model 'nobody/knows'"
    ):
        model_renderer("nobody/knows")
    assert type(model_renderer("evert-tiny-20q")).__name__ == "Qwen3InstructRenderer"
    weights = await open_weights(TinkerModel(tiny_model, renderer_name="qwen3"))
    assert weights.context_length == 512
    assert weights.renderer.renderer.tokenizer.vocab_size < 300


async def test_a_reply_ends_at_the_tightest_limit(engine: Engine, tiny_model: str) -> None:
    agent = Asking(max_tokens=10_000)
    await play(agent, TinkerModel(tiny_model, renderer_name="qwen3", max_tokens=5000))
    assert agent.replies[0].usage.total_tokens <= 512
    assert agent.replies[0].choices[0].finish_reason in ("length", "stop")
    for mine, limit in ((3, None), (3, 7), (7, 3)):
        fields: dict[str, Any] = {} if limit is None else {"max_tokens": limit}
        agent = Asking(**fields)
        await play(agent, TinkerModel(tiny_model, renderer_name="qwen3", max_tokens=mine))
        assert {reply.usage.completion_tokens for reply in agent.replies} <= {1, 2, 3}


async def test_a_prompt_that_leaves_no_room_for_a_reply_is_a_400(
    engine: Engine, tiny_model: str
) -> None:
    async def long(client: Any) -> float:
        with pytest.raises(openai.BadRequestError, match="tokens > 511 maximum") as caught:
            await ask(client, "a" * 600, model="user")
        assert caught.value.code == "context_length_exceeded"
        await ask(client)
        return 1.0

    await play(long, TinkerModel(tiny_model, renderer_name="qwen3"))


OTHER = tinker.types.SupportedModel(model_name="other")
SILENT = tinker.types.GetServerCapabilitiesResponse(supported_models=[OTHER])


@pytest.mark.parametrize(
    "answer", [{"side_effect": tinker.TinkerError("not here")}, {"return_value": SILENT}]
)
def test_the_context_length_is_none_if_the_service_reports_no_length(answer: Any) -> None:
    service = Mock()
    service.get_server_capabilities.configure_mock(**answer)
    assert context_length_of(service, "m") is None


async def test_all_envs_of_an_engine_share_a_client(tmp_path: Path) -> None:
    models = [TinkerModel("evert-tiny"), TinkerModel("evert-tiny", temperature=0, seed=3)]
    clients = []
    for name in "ab":
        with embedded_engine(tmp_path / name, device="cpu", threads=1):
            opened = await asyncio.gather(*(open_weights(model) for model in models * 4))
            assert len({id(weights.client) for weights in opened}) == 1
            clients.append(opened[0].client)
            await play(agent := Asking(), models[1])
            assert agent.texts[0]
    assert clients[0] is not clients[1]


async def test_weights_that_failed_to_open_can_be_opened_later(engine: Engine) -> None:
    model = TinkerModel(model_path="tinker://run/sampler_weights/kept")
    with pytest.raises(CheckpointError, match="was not found"):
        await open_weights(model)
    folder = engine.store.folder(await saved("evert-tiny"))
    target = engine.store.folder(str(model.model_path))
    target.parent.mkdir(parents=True)
    folder.rename(target)
    assert (await open_weights(model)).context_length == 8192


def test_a_tinker_model_can_be_pickled() -> None:
    model = TinkerModel("evert-tiny", temperature=0.5)
    assert pickle.loads(pickle.dumps(model)) == model


@pytest.mark.parametrize(
    ("name", "fields", "text"),
    [
        (None, {}, r"neither base_model nor model_path.*Qwen3-8B"),
        ("evert-tiny", {"temperature": -1}, r"got temperature=-1; expected a finite number"),
        ("evert-tiny", {"temperature": math.nan}, "temperature=nan"),
        ("evert-tiny", {"max_tokens": 0}, "max_tokens=0"),
    ],
)
def test_an_invalid_field_of_a_tinker_model_is_refused(name: Any, fields: Any, text: str) -> None:
    with pytest.raises(InvalidModelError, match=text):
        TinkerModel(name, **fields)
