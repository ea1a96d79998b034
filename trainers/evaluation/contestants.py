"""Who plays: what a user names, as something that can.

    evert-tiny-20q             a shipped base, a Hugging Face folder, or a model of the service
    runs/NAME, runs/NAME@20    weights of a training run: the last ones, or those after 20 steps
    tinker://...               weights on a Tinker service
    openai:gpt-5-mini          a model behind an endpoint that speaks OpenAI's chat completions
    random, oracle             a player without a model, where the game has one

``find`` turns a name into a contestant, which ``seated`` has ready to play inside a block. Each
brings the agent it plays with: a run the one it was trained with, a player itself, all others the
game's.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs

from evert.bridge.env import ChatAgentEnv
from evert.bridge.errors import EvertError
from evert.bridge.group import load_agent
from evert.bridge.models import RemoteModel
from evert.bridge.rendering import prompt_renderer
from evert.envs.games import find_game
from evert.trainers.evaluation.settings import EvaluateSettings
from evert.trainers.runs.engine_choice import choose_engine, running_engine
from evert.trainers.runs.folder import CHECKPOINTS, read_jsonl, recorded_settings
from evert.trainers.runs.settings import TrainSettings, renderer_of

if TYPE_CHECKING:
    from tinker_cookbook.renderers import Renderer

Policy: TypeAlias = Callable[[ChatAgentEnv, int], TokenCompleter]
"""From an Env and an episode's seed to what plays in it."""

ENDPOINT = "openai:"
SERVICE = "tinker://"


class ContestantError(EvertError, ValueError):
    """What was named cannot play: there is no such model, run, checkpoint or player."""


@dataclass(frozen=True)
class Seat:
    """A contestant that is ready to play.

    Attributes:
        agent: From an episode's seed to the agent.
        policy: What answers the agent's model calls.
        renderer: Of the model; None for the default one.
    """

    agent: Callable[[int], Any]
    policy: Policy
    renderer: "Renderer | None" = None


@dataclass(frozen=True)
class Contestant:
    """Somebody to evaluate.

    Attributes:
        name: As the tables have it.
        run: What it was trained with, or would be; decides on engine, renderer and agent.
    """

    name: str
    run: TrainSettings

    def agent(self, settings: EvaluateSettings) -> Any:
        """The agent it plays with; a player's is a function from a seed to an agent.

        Raises:
            EvertError: There is none, or it cannot search and should.
        """
        return load_agent(settings.agent_of(self.run))

    @contextmanager
    def seated(self, settings: EvaluateSettings, say: Callable[[str], None]) -> Iterator[Seat]:
        """Have it ready to play inside the block; ``say`` gets a line about what it plays on."""
        raise NotImplementedError


# -- players without a model ---------------------------------------------------------------------


@dataclass(frozen=True)
class PlayerContestant(Contestant):
    """A function from a seed to an agent that calls no model, by its import path."""

    path: str = ""

    def agent(self, settings: EvaluateSettings) -> Any:
        """See ``Contestant``."""
        return load_agent(self.path)

    @contextmanager
    def seated(self, settings: EvaluateSettings, say: Callable[[str], None]) -> Iterator[Seat]:
        """See ``Contestant``."""
        yield Seat(self.agent(settings), lambda env, seed: _Nobody())


class _Nobody(TokenCompleter):
    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        raise ContestantError("This player called a model, and it has none.")


# -- endpoints -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class EndpointContestant(Contestant):
    """A model behind an endpoint."""

    @contextmanager
    def seated(self, settings: EvaluateSettings, say: Callable[[str], None]) -> Iterator[Seat]:
        """See ``Contestant``."""
        remote = RemoteModel(
            self.name.removeprefix(ENDPOINT), settings.base_url, settings.api_key_env
        )
        agent = self.agent(settings)
        say(f"{remote.model} at {remote.base_url}")
        yield Seat(lambda seed: agent, lambda env, seed: EndpointPolicy(env, remote))


class EndpointPolicy(TokenCompleter):
    """Plays an Env by what a remote model says, written in the tokens of the Env's renderer.

    The prompt goes out as the agent's own messages, so that no chat format stands between; the
    tokens only carry the reply back, and have no log-probabilities.
    """

    def __init__(self, env: ChatAgentEnv, remote: RemoteModel) -> None:
        self._env = env
        self._remote = remote

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """The endpoint's reply to the call that waits.

        Raises:
            openai.OpenAIError: Of the endpoint, as the SDK raises it.
        """
        assert self._env.request is not None
        reply = await self._remote(self._env.request)
        renderer = prompt_renderer(self._env.renderer)
        tokens = [
            token for token in renderer.as_history([reply.parsed], 0, -1) if isinstance(token, int)
        ]
        tokens += renderer.missing_end(tokens)
        cut = reply.finish_reason == "length"
        return TokensWithLogprobs(tokens, [0.0] * len(tokens), "length" if cut else "stop")


# -- weights -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WeightsContestant(Contestant):
    """Weights of the embedded engine or of a service.

    Attributes:
        weights: ``base_model`` or ``model_path``, as sampling clients are created.
        checkpoints: Where the embedded engine looks for them.
    """

    weights: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: Path = Path()

    @contextmanager
    def seated(self, settings: EvaluateSettings, say: Callable[[str], None]) -> Iterator[Seat]:
        """See ``Contestant``."""
        from tinker_cookbook.renderers import get_renderer
        from tinker_cookbook.tokenizer_utils import get_tokenizer

        from evert.trainers.runs import engine_choice

        agent = self.agent(settings)
        with running_engine(choose_engine(self.run), self.run, self.checkpoints) as facts:
            say(engine_choice.say(facts))
            service = tinker.ServiceClient(base_url=self.run.base_url)
            client = service.create_sampling_client(**self.weights)
            renderer = get_renderer(
                renderer_of(self.run),
                get_tokenizer(self.run.model_name),
                model_name=self.run.model_name,
            )
            most = settings.max_tokens or self.run.max_tokens

            def policy(env: ChatAgentEnv, seed: int) -> TokenCompleter:
                return SeededPolicy(client, most, settings.temperature, seed)

            yield Seat(lambda seed: agent, policy, renderer)


class SeededPolicy(TokenCompleter):
    """Samples one episode by seeds of its own, so that the order of play makes no difference.

    Args:
        client: The weights.
        max_tokens: Most tokens of one reply.
        temperature: 0 for greedy.
        seed: Of the episode; its n-th reply is drawn by ``seed + n``.
    """

    def __init__(
        self, client: tinker.SamplingClient, max_tokens: int, temperature: float, seed: int
    ) -> None:
        self._client = client
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._seed = seed

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        """The next reply."""
        params = tinker.SamplingParams(
            stop=stop,
            max_tokens=min(self._max_tokens, max_tokens or self._max_tokens),
            temperature=self._temperature,
            seed=self._seed,
        )
        self._seed += 1
        result = await self._client.sample_async(
            prompt=model_input, num_samples=1, sampling_params=params
        )
        (sequence,) = result.sequences
        return TokensWithLogprobs(sequence.tokens, sequence.logprobs, sequence.stop_reason)


# -- from names ----------------------------------------------------------------------------------


def find(name: str, settings: EvaluateSettings) -> Contestant:
    """The contestant that a name stands for.

    Raises:
        ContestantError: There is none.
    """
    game = find_game(settings.env)
    players = game.players if game else {}
    if name in players:
        return PlayerContestant(name, settings.run_of(""), players[name])
    if name.startswith(ENDPOINT):
        return EndpointContestant(name, settings.run_of(name))
    folder, _, step = name.partition("@")
    if recorded := recorded_settings(folder):
        return _of_run(name, Path(folder).expanduser(), step, recorded)
    if name.startswith(SERVICE):
        if not settings.model_name:
            raise ContestantError(
                f"{name} are weights of a model that has to be named: model_name=Qwen/Qwen3-8B, "
                "say. For weights of the embedded engine name their run: runs/NAME."
            )
        run = settings.run_of(settings.model_name)
        return WeightsContestant(name, run, {"model_path": name})
    if name.count("/") > 1 and not Path(name).expanduser().is_dir():
        raise ContestantError(
            f"There is no run and no model at {name!r}. Expected a run folder (runs/NAME), a "
            "Hugging Face folder, a model's name, tinker://..., openai:MODEL"
            + (f", or {' or '.join(players)}." if players else ".")
        )
    return WeightsContestant(name, settings.run_of(name), {"base_model": name})


def _of_run(name: str, folder: Path, step: str, recorded: Mapping[str, Any]) -> WeightsContestant:
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
    path = saved[step] if step else [*saved.values()][-1]
    run = TrainSettings(**recorded)
    return WeightsContestant(name, run, {"model_path": path}, folder / "checkpoints")
