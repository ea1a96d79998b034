"""Who plays: what a user names, as something that can.

A name is that of a model, as every command takes it (``runs/named_models.py``), or of a player
without a model, where the game has one (``random``, ``oracle``). ``find`` turns it into a
contestant, which ``ready`` has ready to play inside a block. All play the agent that the
evaluation names, a run as well, with the options and beside the frozen models that it names;
players without a model are agents themselves.

A contestant's digest is of all that decides what it says: its weights, whatever folder they are in,
the agent, the renderer, the most tokens of a reply, what an episode is. The weights of an endpoint
or a server cannot be seen, its address and name can.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import chz
import tinker

from evert.bridge.env.options import EnvOptions
from evert.bridge.groups.group import load_agent
from evert.bridge.models.remote import RemoteModel
from evert.bridge.redaction import redacted
from evert.bridge.tokens.bases import BASES, model_renderer
from evert.trainers.config.backend import check_engine, choose_engine, context_of, running_engine
from evert.trainers.config.backend import say as engine_in_words
from evert.trainers.config.episode import EpisodeSettings, env_options
from evert.trainers.config.evaluate import EvaluateSettings
from evert.trainers.config.frozen_models import (
    check_episodes,
    fingerprint,
    frozen_models,
    needs_engine,
)
from evert.trainers.config.model_names import (
    ModelNameError,
    NamedEndpoint,
    NamedServer,
    NamedWeights,
    find_model,
)
from evert.trainers.config.train import TrainSettings, renderer_of
from evert.trainers.episodes.playing import Player
from evert.trainers.episodes.policies import EndpointPolicy, NoPolicy, SeededPolicy
from evert.trainers.serving.client import ServedSamplingClient
from evert.trainers.serving.fitness import check_server
from evert.trainers.system.command import run_async

NO_MATTER = frozenset({"agent_timeout", "close_timeout", "context_length"})
"""Settings of an episode that decide nothing of what is said in it."""

OPENAI_KEY, SERVER_KEY = "OPENAI_API_KEY", "VLLM_API_KEY"
"""Variables that have the keys of endpoints and of servers, unless the settings name another."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Contestant:
    """Somebody to evaluate.

    Attributes:
        name: As the tables have it.
        settings: Of the evaluation.
        agent: Import path of what it plays; a player's, of a function from a seed to an agent.
    """

    name: str
    settings: EvaluateSettings
    agent: str

    @property
    def digest(self) -> str:
        """Of all that decides what it says; see the module."""
        text = json.dumps([self.agent, self._episode(), *self.plays_by()])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def _episode(self) -> list[Any]:
        names = sorted(chz.chz_fields(EpisodeSettings).keys() - NO_MATTER)
        values = [(name, getattr(self.settings, name)) for name in names]
        found = [*values, fingerprint(self.settings.beside)]
        return [*found, self.settings.opponent] if self.settings.opponent else found

    @property
    def played(self) -> TrainSettings:
        """The run that would train on what it plays: the engine and the options it has."""
        return self.settings.run_of("")

    def check(self) -> None:
        """Find what would stop it before it plays: a path that leads nowhere, mostly.

        Raises:
            EvertError: Its agent, what it plays on, or an option, is not there.
        """
        run, settings = self.played, self.settings
        agent = self.maker()(0)
        task = next(tasks[0] for tasks in settings.tasks().values() if len(tasks))
        embedded = choose_engine(run).kind == "embedded"
        check_episodes(settings, settings.frozen, agent, task, embedded=embedded)

    def maker(self) -> Callable[[int], Any]:
        """From a seed to the agent that it plays."""
        return load_agent(self.agent)

    def plays_by(self) -> list[Any]:
        """What decides what it says, beside the agent; a player's agent is all there is."""
        return []

    def options(self) -> EnvOptions:
        """Of its Envs."""
        return env_options(self.settings, frozen_models(self.settings.frozen))

    @contextmanager
    def ready(self, say: Say) -> Iterator[Player]:
        """Have it ready to play inside the block; ``say`` gets a line about what it plays on."""
        with self._engine():
            policy = NoPolicy()
            yield Player(
                self.maker(), lambda env, seed: policy, self.options(), self.settings.seats
            )

    def _engine(self, url: str = "") -> Any:
        """An engine if the frozen models need one. It lets ``url`` through; "" for no address."""
        run = self.played
        if not needs_engine(frozen_models(run.models)):
            return nullcontext()
        host = urlsplit(url).hostname
        run = chz.replace(run, allow_hosts=(*run.allow_hosts, *([host] if host else [])))
        return running_engine(choose_engine(run), run, Path())


@dataclass(frozen=True)
class Endpoint(Contestant):
    """A model behind an endpoint.

    Attributes:
        named: The model, and its address where the name says it.
    """

    named: NamedEndpoint

    @property
    def base_url(self) -> str:
        """Its address."""
        return self.named.base_url or self.settings.base_url

    def maker(self) -> Callable[[int], Any]:
        """See ``Contestant``."""
        agent = load_agent(self.agent)
        return lambda seed: agent

    def plays_by(self) -> list[Any]:
        """See ``Contestant``."""
        return [self.named.model, self.base_url, self.settings.max_tokens]

    @contextmanager
    def ready(self, say: Say) -> Iterator[Player]:
        """See ``Contestant``."""
        remote = RemoteModel(
            self.named.model,
            self.base_url,
            self.settings.api_key_env or OPENAI_KEY,
            temperature=self.settings.temperature,
        )
        most = self.settings.max_tokens
        say(f"{remote.model} at {remote.base_url}")
        with self._engine(self.base_url):
            yield Player(
                self.maker(),
                lambda env, seed: EndpointPolicy(env, remote, most),
                self.options(),
                self.settings.seats,
            )


@dataclass(frozen=True)
class Served(Contestant):
    """A model behind a server of token ids: what it plays by are the very tokens that it sampled.

    Attributes:
        client: Of the model.
        run: What it would be trained by: renderer, most tokens of a reply.
        context_length: Tokens of its context; None: the server does not say.
    """

    client: ServedSamplingClient
    run: TrainSettings
    context_length: int | None

    @property
    def max_tokens(self) -> int:
        """Most tokens of a reply."""
        return self.settings.max_tokens or self.run.max_tokens

    def maker(self) -> Callable[[int], Any]:
        """See ``Contestant``."""
        agent = load_agent(self.agent)
        return lambda seed: agent

    def plays_by(self) -> list[Any]:
        """See ``Contestant``."""
        client = self.client
        return [client.model, client.base_url, renderer_of(self.run), self.max_tokens]

    @contextmanager
    def ready(self, say: Say) -> Iterator[Player]:
        """See ``Contestant``; here the server is checked once (``serving/fitness.py``)."""
        client, options = self.client, self.options()
        renderer = model_renderer(self.run.model_name, renderer_of(self.run))
        options["renderer"] = renderer
        options["context_length"] = self.run.context_length or self.context_length
        cap, heat = self.max_tokens, self.settings.temperature
        with self._engine(client.base_url):
            run_async(check_server(client, renderer.tokenizer))
            say(f"{client.model} at {client.base_url}, by token ids")
            yield Player(
                self.maker(),
                lambda env, seed: SeededPolicy(client, cap, heat, seed),
                options,
                self.settings.seats,
            )


@dataclass(frozen=True)
class Weights(Contestant):
    """Weights of the embedded engine or of a service.

    Attributes:
        named: The weights.
        run: What they were trained by, or would be: engine, model, renderer, most tokens.
    """

    named: NamedWeights
    run: TrainSettings

    @property
    def weights(self) -> Mapping[str, Any]:
        """As sampling clients are created."""
        if self.named.model_path is not None:
            return {"model_path": self.named.model_path}
        return {"base_model": self.named.base_model}

    @property
    def played(self) -> TrainSettings:
        """See ``Contestant``."""
        return self.run

    @property
    def max_tokens(self) -> int:
        """Most tokens of a reply."""
        return self.settings.max_tokens or self.run.max_tokens

    def check(self) -> None:
        """See ``Contestant``."""
        super().check()
        check_engine(self.run)
        renderer_of(self.run)

    def maker(self) -> Callable[[int], Any]:
        """See ``Contestant``."""
        agent = load_agent(self.agent)
        return lambda seed: agent

    def plays_by(self) -> list[Any]:
        """See ``Contestant``."""
        return [self.named.digests, renderer_of(self.run), self.max_tokens]

    @contextmanager
    def ready(self, say: Say) -> Iterator[Player]:
        """See ``Contestant``."""
        run, checkpoints = self.run, self.named.checkpoints
        with running_engine(choose_engine(run), run, checkpoints or Path()) as facts:
            say(engine_in_words(facts))
            if checkpoints is not None and run.agent != self.agent:
                say(f"plays {self.agent}; it was trained with {run.agent}")
            service = tinker.ServiceClient(base_url=run.base_url)
            client = service.create_sampling_client(**self.weights)
            options = self.options()
            options["renderer"] = model_renderer(run.model_name, renderer_of(run))
            options["context_length"] = context_of(run)
            cap, heat = self.max_tokens, self.settings.temperature
            yield Player(
                self.maker(),
                lambda env, seed: SeededPolicy(client, cap, heat, seed),
                options,
                self.settings.seats,
            )

    def options(self) -> EnvOptions:
        """See ``Contestant``."""
        return env_options(self.settings, frozen_models(self.settings.frozen, self.run.base_url))


# -- from names ----------------------------------------------------------------------------------


def find(name: str, settings: EvaluateSettings) -> Contestant:
    """The contestant that a name stands for.

    Raises:
        ModelNameError: There is none.
        RecipeError: Its agent should search, and cannot.
    """
    if name in settings.players:
        return Contestant(name, settings, settings.players[name])
    model, shown = find_model(name, settings.players), redacted(name)
    if isinstance(model, NamedServer):
        return _find_served(name, model, settings)
    if isinstance(model, NamedEndpoint):
        return Endpoint(shown, settings, settings.agent_of(settings.run_of(name)), model)
    base = model.base_model or settings.model_name
    if not base:
        raise ModelNameError(
            f"{name} are weights of a model that has to be named: model_name=Qwen/Qwen3-8B, "
            "say. For weights of the embedded engine name their run: runs/NAME."
        )
    run = settings.run_of(base)
    agent = settings.agent_of(run)
    if model.run:
        trained = chz.replace(TrainSettings(**model.run), **settings.asked)
        run = settings.played_as(trained)
    return Weights(shown, settings, agent, model, run)


def _find_served(name: str, named: NamedServer, settings: EvaluateSettings) -> Served:
    key = os.environ.get(settings.api_key_env or SERVER_KEY)
    there = run_async(ServedSamplingClient(named.base_url, "", key).models())
    models = {str(model.get("id")): model for model in there}
    wanted = named.model or (next(iter(models)) if len(models) == 1 else None)
    if wanted not in models:
        raise ModelNameError(
            f"{name}: the server has {', '.join(map(repr, models)) or 'no models'}. Name one of "
            f"them after a #: vllm:{named.base_url}#{next(iter(models), 'MODEL')}."
        )
    facts = models[wanted]
    # `evert serve` says whose weights they are, and vLLM where it has them from
    roots = [root for root in (facts.get("root"), wanted) if root in BASES]
    base = settings.model_name or (roots or [facts.get("root") or wanted])[0]
    run = settings.run_of(base)
    client = ServedSamplingClient(named.base_url, wanted, key, base_model=base)
    context = facts.get("max_model_len") or dict(facts.get("meta") or {}).get("n_ctx")
    return Served(redacted(name), settings, settings.agent_of(run), client, run, context)
