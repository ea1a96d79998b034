"""Finds the contestants of an evaluation: models, and players without a model (``random``).

``find`` returns the contestant for a name (``config/model_names.py``). A contestant can only play
inside the context manager that its method ``ready`` returns. All models play the evaluation's agent
with the same options and frozen models. Players without a model are agents themselves.

A contestant's digest covers everything that determines its replies: the weights (but not their
folder), the agent, the renderer, the maximum reply length and the episode settings. We don't know
the weights of a model behind an endpoint or server, so we use the URL and the model's name instead.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import chz
import openai
import tinker
from tinker_cookbook.completers import TokenCompleter

from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.env.options import EnvOptions
from evert.bridge.errors import EvertError
from evert.bridge.groups.group import load_agent
from evert.bridge.models.frozen import FrozenModel
from evert.bridge.models.remote import RemoteModel
from evert.bridge.redaction import redacted
from evert.bridge.tokens.bases import BASES, model_renderer
from evert.trainers.config.backend import (
    EngineChoice,
    check_engine,
    choose_engine,
    context_of,
    running_engine,
)
from evert.trainers.config.backend import say as engine_in_words
from evert.trainers.config.episode import EpisodeSettings, env_options
from evert.trainers.config.evaluate import PlayingSettings
from evert.trainers.config.frozen_models import check_episodes, needs_engine, open_models
from evert.trainers.config.model_names import ModelNameError, ModelRef
from evert.trainers.config.opponents import open_opponent
from evert.trainers.config.plan import PlayingPlan
from evert.trainers.config.train import TrainSettings, renderer_of
from evert.trainers.episodes.person import Person
from evert.trainers.episodes.playing import Player
from evert.trainers.episodes.policies import EndpointPolicy, NoPolicy, SeededPolicy
from evert.trainers.serving.client import ServedSamplingClient
from evert.trainers.serving.server_check import check_server
from evert.trainers.system.command import run_async

NO_MATTER = frozenset({"agent_timeout", "close_timeout", "context_length"})
"""Episode settings that don't affect the messages."""

OPENAI_KEY, SERVER_KEY = "OPENAI_API_KEY", "VLLM_API_KEY"
"""Default environment variables for the API keys of endpoints and servers."""

Say: TypeAlias = Callable[[str], None]

Policy: TypeAlias = Callable[[ChatAgentEnv, int], TokenCompleter]
"""Takes an Env and the episode's seed, and returns the policy that answers the agent's calls."""


class EndpointError(EvertError, RuntimeError):
    """A request to the model's endpoint failed. Finished episodes are kept."""


@dataclass(frozen=True)
class Contestant:
    """A model, or a player without a model, that takes part in an evaluation.

    Attributes:
        name: The name to show in tables.
        plan: The tasks, episode settings and other models.
        agent: Import path of the agent. For a player without a model, it is the import path of a
            function that takes a seed and returns the agent.
        run: Settings of a run with this model (engine, renderer, maximum reply length).
        model: The model that answers the agent's calls, or None for a player without a model.
        context_length: The model's context length, as reported by its server (None: unknown).
    """

    name: str
    plan: PlayingPlan
    agent: str
    run: TrainSettings
    model: ModelRef | RemoteModel | ServedSamplingClient | Person | None = None
    context_length: int | None = None

    @property
    def settings(self) -> PlayingSettings:
        """The episode settings."""
        return self.plan.settings

    @property
    def digest(self) -> str:
        """Digest of everything that determines the replies; see the module docstring."""
        text = json.dumps([self.agent, self._episode(), *self._reply_sources()])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def _episode(self) -> list[Any]:
        names = sorted(chz.chz_fields(EpisodeSettings).keys() - NO_MATTER)
        values: list[Any] = [(name, getattr(self.settings, name)) for name in names]
        values = [(n, dict(sorted(v.items())) if isinstance(v, Mapping) else v) for n, v in values]
        return [*values, *self.plan.fingerprint]

    def _reply_sources(self) -> list[Any]:
        model = self.model
        if model is None or isinstance(model, Person):
            return []
        if isinstance(model, RemoteModel):
            return [model.model, model.base_url, self.settings.max_tokens]
        source: list[Any] = [model.model, model.base_url]
        if isinstance(model, ModelRef):
            source = [model.digests]
        return [*source, renderer_of(self.run), self.max_tokens]

    @property
    def weights(self) -> Mapping[str, Any]:
        """Arguments for creating a sampling client; empty if ``model`` is not a ``ModelRef``."""
        if not isinstance(self.model, ModelRef):
            return {}
        path = self.model.model_path
        return {"base_model": self.model.model} if path is None else {"model_path": path}

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens in a reply, for models that take token ids."""
        return self.settings.max_tokens or self.run.max_tokens

    @property
    def _engine_run(self) -> TrainSettings:
        """Settings of the run that determine the contestant's engine."""
        return self.run if self.weights else self.plan.run

    @cached_property
    def _engine_choice(self) -> EngineChoice:
        return choose_engine(self._engine_run)

    @cached_property
    def _models(self) -> dict[str, FrozenModel]:
        """The frozen models, and the opponent if it is a model."""
        return open_models(self.plan.models, self.run.base_url if self.weights else None)

    @property
    def _frozen(self) -> dict[str, FrozenModel]:
        return {name: self._models[name] for name in self.plan.frozen}

    @cached_property
    def _agents(self) -> Callable[[int], Any]:
        """A function that takes a seed and returns the agent to play."""
        agent: Any = load_agent(self.agent)
        return agent if self.model is None else lambda seed: agent

    def check(self) -> None:
        """Check the contestant's agent, engine, tasks and options before it plays.

        Raises:
            EvertError: One of them doesn't exist, or they are incompatible.
        """
        agent, engine = self._agents(0), self._engine_choice
        task = next(tasks[0] for tasks in self.plan.tasks.values() if len(tasks))
        if self.weights:
            check_engine(self.run, engine)
        check_episodes(self.settings, self._frozen, agent, task, embedded=engine.embedded)
        if self.weights or isinstance(self.model, ServedSamplingClient):
            renderer = renderer_of(self.run)
            if self.run.chat_template:
                model_renderer(self.run.model_name, renderer)  # raises for unused variables

    # -- ready to play ---------------------------------------------------------------------------

    @contextmanager
    def ready(self, say: Say) -> Iterator[Player]:
        """Prepare the contestant to play in the block, and ``say`` which model or engine it uses.

        Raises:
            EndpointError: A request to the model's endpoint failed.
        """
        with self._policy(say) as (policy, fitting):
            options = env_options(self.settings, self._frozen)
            options.update(fitting)
            cap = self.settings.max_tokens or self.plan.run.max_tokens
            opponents = open_opponent(self.plan.opponent, cap)
            try:
                yield Player(self._agents, policy, options, self.settings.seats, opponents)
            except openai.OpenAIError as error:
                raise EndpointError(
                    f"{self.name}: a request to the endpoint failed: "
                    f"{type(error).__name__}: {error}. Check base_url, "
                    f"{self.settings.api_key_env or OPENAI_KEY} and the model name."
                ) from error

    @contextmanager
    def _policy(self, say: Say) -> Iterator[tuple[Policy, EnvOptions]]:
        """Yield the policy and the Env options that it requires."""
        run, cap, renderer = self.run, self.settings.max_tokens, None
        if isinstance(self.model, ServedSamplingClient):  # load now: engines block the network
            renderer = model_renderer(run.model_name, renderer_of(run))
        with self._engine() as facts:
            match self.model:
                case None:
                    yield lambda env, seed: NoPolicy(), {}
                case RemoteModel() as remote:
                    say(f"{remote.model} at {remote.base_url}")
                    yield lambda env, seed: EndpointPolicy(env, remote, cap), {}
                case Person() as person:
                    yield lambda env, seed: EndpointPolicy(env, person), {}
                case ServedSamplingClient() as client:
                    assert renderer is not None
                    run_async(check_server(client, renderer.tokenizer))
                    say(f"{client.model} at {client.base_url}, using token ids")
                    context = run.context_length or self.context_length
                    yield self._seeded(client), {"renderer": renderer, "context_length": context}
                case ModelRef(checkpoints=store):
                    say(engine_in_words(facts))
                    if store is not None and run.agent != self.agent:
                        say(f"plays {self.agent}, but was trained with {run.agent}")
                    service = tinker.ServiceClient(base_url=run.base_url)
                    policy = self._seeded(service.create_sampling_client(**self.weights))
                    renderer = model_renderer(run.model_name, renderer_of(run))
                    yield policy, {"renderer": renderer, "context_length": context_of(run)}

    def _seeded(self, client: tinker.SamplingClient | ServedSamplingClient) -> Policy:
        cap, heat = self.max_tokens, self.settings.temperature
        return lambda env, seed: SeededPolicy(client, cap, heat, seed)

    def _engine(self) -> AbstractContextManager[Any]:
        """Return the engine that the models need, if any. It may access the endpoint's host."""
        run = self._engine_run
        if not self.weights and not needs_engine(self._models):
            return nullcontext()
        host = urlsplit(getattr(self.model, "base_url", None) or "").hostname
        run = chz.replace(run, allow_hosts=(*run.allow_hosts, *([host] if host else [])))
        store = getattr(self.model, "checkpoints", None)
        return running_engine(self._engine_choice, run, store or Path(), self._models)


# -- from names ----------------------------------------------------------------------------------


def find(name: str, plan: PlayingPlan) -> Contestant:
    """Return the contestant for a name in the plan."""
    settings, model, title = plan.settings, plan.players[name], redacted(name)
    if model is None:
        return Contestant(name, plan, settings.players[name], plan.run)
    if model.kind == "server":
        return _find_served(name, model, plan)
    if model.kind == "endpoint":
        address, key = model.base_url or settings.base_url, settings.api_key_env or OPENAI_KEY
        access = {"base_url": address, "api_key_env": key, "temperature": settings.temperature}
        remote: Any = replace(model, options=access).open()
        run = settings.run_of(name)
        return Contestant(title, plan, settings.agent_of(run), run, remote)
    base = model.model or settings.model_name
    if not base:
        raise ModelNameError(
            f"The base model of the weights {name} is unknown. Pass it, for example "
            "model_name=Qwen/Qwen3-8B. For weights from the embedded engine, pass the run they "
            "belong to: runs/NAME."
        )
    run = settings.run_of(base)
    agent = settings.agent_of(run)
    if model.run:
        trained = chz.replace(TrainSettings(**model.run), **settings.overrides)
        run = settings.played_as(trained)
    return Contestant(title, plan, agent, run, model)


def _find_served(name: str, server: ModelRef, plan: PlayingPlan) -> Contestant:
    settings, address = plan.settings, str(server.base_url)
    key = os.environ.get(settings.api_key_env or SERVER_KEY)
    cards = run_async(ServedSamplingClient(address, "", key).models())
    models = {str(model.get("id")): model for model in cards}
    model_id = server.model or (next(iter(models)) if len(models) == 1 else None)
    if model_id not in models:
        raise ModelNameError(
            f"{name}: the server has {', '.join(map(repr, models)) or 'no models'}. Add one of "
            f"them after a #: vllm:{address}#{next(iter(models), 'MODEL')}."
        )
    facts = models[model_id]
    # `evert serve` reports the base model as root; vLLM reports the weights' path or name
    roots = [root for root in (facts.get("root"), model_id) if root in BASES]
    base = settings.model_name or (roots or [facts.get("root") or model_id])[0]
    run = settings.run_of(base)
    client = ServedSamplingClient(address, model_id, key, base_model=base)
    context = facts.get("max_model_len") or dict(facts.get("meta") or {}).get("n_ctx")
    return Contestant(redacted(name), plan, settings.agent_of(run), run, client, context)
