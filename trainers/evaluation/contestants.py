"""Who plays: what a user names, as something that can.

    evert-tiny-20q             a shipped base, a Hugging Face folder, or a model of the service
    runs/NAME, runs/NAME@20    weights of a training run: the last ones, or those after 20 steps
    tinker://...               weights on a Tinker service
    openai:gpt-5-mini          a model behind an endpoint that speaks OpenAI's chat completions
    random, oracle             a player without a model, where the game has one

``find`` turns a name into a contestant, which ``ready`` has ready to play inside a block. All play
the agent that the evaluation names, a run as well; players without a model are agents themselves.

A contestant's digest is of all that decides what it says: its weights, whatever folder they are in,
the agent, the renderer, the most tokens of a reply. Models of a Hub or a service have names that
are never given to other weights; an endpoint's weights cannot be seen, its address and name can.
"""

import difflib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chz
import tinker
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.tokenizer_utils import get_tokenizer

from evert.bridge.base import BASES, base_path
from evert.bridge.errors import EvertError
from evert.bridge.group import load_agent
from evert.bridge.models import RemoteModel
from evert.bridge.options import EnvOptions
from evert.trainers.evaluation.episodes import Player
from evert.trainers.evaluation.policies import EndpointPolicy, NoPolicy, SeededPolicy
from evert.trainers.evaluation.settings import EvaluateSettings
from evert.trainers.runs.engine_choice import check_engine, choose_engine, running_engine
from evert.trainers.runs.engine_choice import say as engine_in_words
from evert.trainers.runs.folder import CHECKPOINTS, read_jsonl, recorded_settings
from evert.trainers.runs.settings import TrainSettings, renderer_of

ENDPOINT = "openai:"
SERVICE = "tinker://"
WEIGHTS = ("*.safetensors", "*.bin", "*config.json", "tokenizer*", "*.jinja")
"""Files of a model's folder that decide what it says."""

Say = Callable[[str], None]


class ContestantError(EvertError, ValueError):
    """What was named cannot play: there is no such model, run, checkpoint or player."""


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
        text = json.dumps([self.agent, *self.plays_by()])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def check(self) -> None:
        """Find what would stop it before it plays: a path that leads nowhere, mostly.

        Raises:
            EvertError: Its agent, or what it plays on, is not there.
        """
        load_agent(self.agent)

    def plays_by(self) -> list[Any]:
        """What decides what it says, beside the agent; a player's agent is all there is."""
        return []

    @contextmanager
    def ready(self, say: Say) -> Iterator[Player]:
        """Have it ready to play inside the block; ``say`` gets a line about what it plays on."""
        yield Player(load_agent(self.agent), lambda env, seed: NoPolicy())


@dataclass(frozen=True)
class Endpoint(Contestant):
    """A model behind an endpoint."""

    def plays_by(self) -> list[Any]:
        """See ``Contestant``."""
        return [self.name, self.settings.base_url, self.settings.max_tokens]

    @contextmanager
    def ready(self, say: Say) -> Iterator[Player]:
        """See ``Contestant``."""
        remote = RemoteModel(
            self.name.removeprefix(ENDPOINT),
            self.settings.base_url,
            self.settings.api_key_env,
            temperature=self.settings.temperature,
        )
        agent, most = load_agent(self.agent), self.settings.max_tokens
        say(f"{remote.model} at {remote.base_url}")
        yield Player(lambda seed: agent, lambda env, seed: EndpointPolicy(env, remote, most))


@dataclass(frozen=True)
class Weights(Contestant):
    """Weights of the embedded engine or of a service.

    Attributes:
        run: What they were trained by, or would be: engine, model, renderer, most tokens.
        weights: ``base_model`` or ``model_path``, as sampling clients are created.
        checkpoints: Where the embedded engine looks for them; None for weights of no run.
    """

    run: TrainSettings
    weights: Mapping[str, Any]
    checkpoints: Path | None = None

    @property
    def max_tokens(self) -> int:
        """Most tokens of a reply."""
        return self.settings.max_tokens or self.run.max_tokens

    def check(self) -> None:
        """See ``Contestant``."""
        super().check()
        check_engine(self.run)
        renderer_of(self.run)

    def plays_by(self) -> list[Any]:
        """See ``Contestant``."""
        (name,) = self.weights.values()
        if self.checkpoints is not None:
            folder = self.checkpoints / name.removeprefix(SERVICE)
        else:
            folder = base_path(name) if name in BASES else Path(name).expanduser()
        weights = _digests_of_files(folder) or [name]  # not on this disk
        return [weights, renderer_of(self.run), self.max_tokens]

    @contextmanager
    def ready(self, say: Say) -> Iterator[Player]:
        """See ``Contestant``."""
        agent, run = load_agent(self.agent), self.run
        with running_engine(choose_engine(run), run, self.checkpoints or Path()) as facts:
            say(engine_in_words(facts))
            if self.checkpoints is not None and run.agent != self.agent:
                say(f"plays {self.agent}; it was trained with {run.agent}")
            service = tinker.ServiceClient(base_url=run.base_url)
            client = service.create_sampling_client(**self.weights)
            renderer = get_renderer(
                renderer_of(run), get_tokenizer(run.model_name), model_name=run.model_name
            )

            cap, heat = self.max_tokens, self.settings.temperature
            options: EnvOptions = {"renderer": renderer, "agent_timeout": run.agent_timeout}
            yield Player(
                lambda seed: agent, lambda env, seed: SeededPolicy(client, cap, heat, seed), options
            )


def _digests_of_files(folder: Path) -> list[str]:
    """Names and digests of a model's files; none where there are none."""
    found = []
    for path in sorted({path for pattern in WEIGHTS for path in folder.glob(pattern)}):
        with path.open("rb") as file:
            found += [path.name, hashlib.file_digest(file, "blake2b").hexdigest()]
    return found


# -- from names ----------------------------------------------------------------------------------


def find(name: str, settings: EvaluateSettings) -> Contestant:
    """The contestant that a name stands for.

    Raises:
        ContestantError: There is none.
        RecipeError: Its agent should search, and cannot.
    """
    if name in settings.players:
        return Contestant(name, settings, settings.players[name])
    if name.startswith(ENDPOINT):
        return Endpoint(name, settings, settings.agent_of(settings.run_of(name)))
    folder, _, step = name.partition("@")
    if recorded := recorded_settings(folder):
        return _of_run(name, settings, Path(folder).expanduser(), step, recorded)
    model, weights = name, {"base_model": name}
    if name.startswith(SERVICE):
        model, weights = settings.model_name, {"model_path": name}
        if not model:
            raise ContestantError(
                f"{name} are weights of a model that has to be named: model_name=Qwen/Qwen3-8B, "
                "say. For weights of the embedded engine name their run: runs/NAME."
            )
    elif name not in BASES and not Path(name).expanduser().is_dir():
        _check_name(name, settings)
    run = settings.run_of(model)
    return Weights(name, settings, settings.agent_of(run), run, weights)


def _check_name(name: str, settings: EvaluateSettings) -> None:
    """Refuse a name that cannot be a model's of the Hub or of a service."""
    path = Path(name.partition("@")[0]).expanduser()
    beside = "/" in name and path.parent.is_dir()
    there = [*map(str, path.parent.iterdir())] if beside else [*settings.players, *BASES]
    near = difflib.get_close_matches(str(path), there, n=1, cutoff=0.7)
    if near or beside or name.count("/") > 1 or name.startswith((".", "~", "/", "runs/")):
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ContestantError(
            f"There is no run and no model at {name!r}.{hint} Expected a run folder (runs/NAME), a "
            "Hugging Face folder, a model's name, tinker://..., openai:MODEL"
            + (f", or {' or '.join(settings.players)}." if settings.players else ".")
        )


def _of_run(
    name: str, settings: EvaluateSettings, folder: Path, step: str, recorded: Mapping[str, Any]
) -> Weights:
    saved = {
        str(record.get("batch", record["name"])): str(record["sampler_path"])
        for record in read_jsonl(folder / CHECKPOINTS)
        if record.get("sampler_path")
    }
    if not saved or (step and step not in saved):
        raise ContestantError(
            f"{name}: the run in {folder} has no weights "
            + (f"after step {step}; it has those after {', '.join(saved)}." if saved else "yet.")
        )
    weights = {"model_path": saved[step] if step else [*saved.values()][-1]}
    run = chz.replace(TrainSettings(**recorded), **settings.asked)
    agent = settings.agent_of(settings.run_of(run.model_name))
    return Weights(name, settings, agent, run, weights, folder / "checkpoints")
