"""Rollouts for TRL with a fake trainer. ``tests/other_trainers/`` uses the real trainer.

These tests use our own server with vLLM's API, not a real vLLM.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from aiohttp import web
from tests.kit import Patch
from tests.trainers.kit import spied
from tinker_cookbook.rl.rollout_limits import RolloutLimits

from evert.bridge.clients.http.connections import send, whole
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.errors import InvalidAgentError, InvalidDatasetError, InvalidModelError
from evert.bridge.tokens.bases import BASE_RENDERER, base_path, base_tokenizer, default_renderer
from evert.trainers.config.arguments import UsageError
from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.clients.sampling_client import SamplingClient, model_client
from evert.trainers.engine.models.base_models import load_model
from evert.trainers.engine.models.loading import EngineSettings
from evert.trainers.serving.errors import NotServedError
from evert.trainers.serving.service import PolicyService
from evert.trl import Rollouts

IDENTITY = "evert.envs.identity:identity_agent"
TASKS = "evert.envs.identity:TRAIN_TASKS"
NUMBERS = ["3", "17", "42", "999"]


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model("evert-tiny", torch.device("cpu"), torch.float32)


@pytest.fixture
def trainer(model: Any) -> SimpleNamespace:
    accelerator = SimpleNamespace(
        unwrap_model=lambda wrapped: wrapped, device=torch.device("cpu"), process_index=0,
        distributed_type="DistributedType.NO",
    )  # fmt: skip
    return SimpleNamespace(
        model=model, processing_class=base_tokenizer(), accelerator=accelerator,
        args=SimpleNamespace(seed=7), state=SimpleNamespace(global_step=0), use_vllm=False,
        vllm_mode="colocate", max_completion_length=16, temperature=1.0, top_p=1.0, top_k=0,
        min_p=None, repetition_penalty=1.0,
    )  # fmt: skip


@pytest.fixture
def client(trainer: SimpleNamespace) -> SamplingClient:
    """Return the engine client that rollouts would create themselves."""
    engine = Engine(EngineSettings(device="cpu", seed=7))
    return model_client(engine, "trl", trainer.model, base_tokenizer(), 0, 0, 0)


def rollouts(**options: Any) -> Rollouts:
    return Rollouts(IDENTITY, TASKS, **options)


def check_same(rows: dict[str, Any], expected: dict[str, Any]) -> None:
    """Assert that TRL gets identical rows, except for rounding in the log-probabilities."""
    for ours, theirs in zip(rows.pop("logprobs"), expected.pop("logprobs"), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)
    assert rows == expected


class VLLMServer(PolicyService):
    """A server with vLLM's API. It needs no key because TRL's client does not send one."""

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        return await send(request, whole(await self._answer(request)))


@pytest.fixture
def server(trainer: SimpleNamespace, client: SamplingClient) -> Iterator[VLLMServer]:
    with VLLMServer() as running:
        running.offer(client, "the-model")
        trainer.use_vllm, trainer.vllm_mode = True, "server"
        trainer.vllm_generation = SimpleNamespace(
            server_base_url=running.url.removesuffix("/v1"),
            vllm_client=SimpleNamespace(model="the-model"),
        )
        yield running


def test_a_vllm_server_gives_the_same_rows_as_the_engine(
    trainer: SimpleNamespace, request: Any
) -> None:
    ours = rollouts()(NUMBERS, trainer)
    trainer.processing_class = SimpleNamespace(tokenizer=base_tokenizer())  # an image processor
    server = request.getfixturevalue("server")
    check_same(rollouts()(NUMBERS, trainer), ours)
    assert server.requests == len(NUMBERS)
    trainer.temperature = 0.5  # TRL makes vLLM return log-probabilities at this temperature
    assert all(rollouts()(NUMBERS, trainer)["logprobs"])


def test_processes_other_than_the_first_request_the_trainers_model(
    trainer: SimpleNamespace, client: SamplingClient, server: VLLMServer
) -> None:
    address, port = server.url.removesuffix("/v1").removeprefix("http://").split(":")
    place = {"server_base_url": None, "server_host": address, "server_port": port}
    trainer.vllm_generation = SimpleNamespace(**place)
    server.withdraw(client)
    server.offer(client, trainer.model.config.name_or_path)
    assert len(rollouts()(NUMBERS, trainer)["completion_ids"]) == len(NUMBERS)


def test_a_vllm_error_is_raised_and_every_env_is_closed(
    trainer: SimpleNamespace, server: VLLMServer, monkeypatch: Patch
) -> None:
    closed = spied(monkeypatch, ChatAgentEnv, "close", lambda env: env)
    trainer.vllm_generation.vllm_client.model = "another-model"

    with pytest.raises(NotServedError, match="another-model"):
        rollouts()(NUMBERS, trainer)

    assert len({*closed}) == len(NUMBERS)


def test_unsupported_trl_settings_are_refused_with_what_to_change(trainer: SimpleNamespace) -> None:
    for kind in ("FSDP", "DEEPSPEED"):
        trainer.accelerator.distributed_type = f"DistributedType.{kind}"
        with pytest.raises(UsageError, match=f"{kind}.*set use_vllm=True, vllm_mode='server'"):
            rollouts()(NUMBERS, trainer)
    trainer.use_vllm = True  # colocated, TRL's default if vllm_mode is not set
    text = r"vllm_mode='colocate'.*Start `.*vllm serve.*and set vllm_mode='server'"
    with pytest.raises(UsageError, match=text):
        rollouts()(NUMBERS, trainer)


def test_processes_sample_different_replies(trainer: SimpleNamespace) -> None:
    first = rollouts()(NUMBERS, trainer)
    trainer.accelerator.process_index = 1
    assert rollouts()(NUMBERS, trainer)["completion_ids"] != first["completion_ids"]


def test_the_renderer_is_chosen_by_the_models_name(
    trainer: SimpleNamespace, monkeypatch: Any
) -> None:
    for name in ("Qwen/Qwen3-4B-Instruct-2507", str(base_path())):
        monkeypatch.setattr(trainer.model.config, "name_or_path", name)
        rows = rollouts()(NUMBERS, trainer)
        # Timing decides which rows share a batch, and thus the last bits of a float32.
        check_same(rows, rollouts(renderer_name="qwen3_instruct")(NUMBERS, trainer))
    monkeypatch.setattr(trainer.model.config, "name_or_path", "nobody/knows")
    with pytest.raises(InvalidModelError, match="renderer_name="):
        rollouts()(NUMBERS, trainer)


class AsksTwice:
    def __init__(self, **options: Any) -> None:
        self.env_options = options

    async def __call__(self, client: Any, task: int) -> float:
        for _ in range(2):
            messages = [{"role": "user", "content": f"Say {task}."}]
            await client.chat.completions.create(messages=messages, max_tokens=2)
        return 1.0


def test_an_agents_own_options_apply_unless_the_user_overrides_them(
    trainer: SimpleNamespace, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(trainer.model.config, "name_or_path", "nobody/knows")
    one_turn, two_turns = ({"limits": RolloutLimits(max_turns=number)} for number in (1, 2))
    named, brought = {"renderer_name": BASE_RENDERER}, {"renderer": default_renderer()}
    table: list[tuple[dict[str, Any], dict[str, Any], int]] = [
        ({**one_turn, **brought}, {}, 1),
        (one_turn, {**named, **two_turns}, 2),
        ({"context_length": 5}, named, 0),
        ({"context_length": 5}, {**named, "context_length": 400}, 0),
        ({"context_length": 400}, {**named, "context_length": 5}, 0),
        ({"context_length": 400}, {**named, "context_length": 399}, 2),
        ({"renderer": "of another model"}, named, 2),
    ]
    for agent_options, options, turns in table:
        played = Rollouts(AsksTwice(**agent_options), [7], **options)(["0"], trainer)
        [metrics] = played["episode_metrics"]
        assert metrics["turns"] == turns, (agent_options, options)


def test_features_that_need_a_group_or_several_policies_are_refused() -> None:
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (InvalidAgentError, "Got seats=.*identity_agent.*Cookbook's", {"seats": ("a", "b")}),
        (InvalidAgentError, "group_reward=.*a second reward function", {"group_reward": len}),
        (TypeError, "Did you mean 'on_agent_error'", {"on_agent_eror": 0.0}),
    ]
    for error, message, options in wrong:
        with pytest.raises(error, match=message):
            rollouts(**options)
    with pytest.raises(InvalidDatasetError, match="at least one task"):
        Rollouts(IDENTITY, [])
    with pytest.raises(InvalidAgentError):
        Rollouts("evert.envs.identity:nothing", TASKS)


def test_the_reward_function_returns_the_episodes_rewards() -> None:
    metrics: list[tuple[str, float]] = []
    columns: dict[str, list[Any]] = {}
    earned = rollouts().reward(
        completions=["", ""],
        prompts=["0", "1"],
        episode_reward=[1.0, None],
        episode_metrics=[{"turns": 2.0}, {"turns": 1.0}],
        task=[0, {"question": "?"}],
        log_metric=lambda *metric: metrics.append(metric),
        log_extra=columns.__setitem__,
    )
    assert earned == [1.0, None]
    assert metrics == [("evert/turns", 2.0), ("evert/turns", 1.0)]
    assert columns == {"task": ["0", "{'question': '?'}"]}
