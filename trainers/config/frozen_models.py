"""Frozen models of a run or an evaluation, configured with ``models.NAME=...``.

    models.user=evert-tiny                       the model that answers calls to "user"
    models.user.temperature=0                    an option of this model (``OPTIONS``)
    models.judge=runs/NAME                       the latest weights of a run
    models.critic=https://host/v1#model          an endpoint
    models.critic.api_key_env=HOST_KEY           environment variable with the endpoint's API key

The settings map the part after ``models.`` to a string. From Python, a value can also be a model
object. ``pin_steps`` makes a resumed run keep the frozen weights that it started with.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import chz

from evert.bridge.tokens.bases import BASES
from evert.trainers.config.arguments import UsageError, read_settings
from evert.trainers.config.early_checks import check_renderer
from evert.trainers.config.episode import EpisodeSettings, env_options
from evert.trainers.config.fields import RecipeError
from evert.trainers.config.model_names import (
    ModelNameError,
    ModelRef,
    check_model,
    find_model,
    split_step,
)

if TYPE_CHECKING:
    from evert.bridge.models.frozen import FrozenModel


@chz.chz
class WeightsOptions:
    """Sampling options for weights; see ``TinkerModel``."""

    temperature: float = 1.0
    max_tokens: int | None = None
    renderer_name: str | None = None


@chz.chz
class EndpointOptions:
    """Request options for an endpoint; see ``RemoteModel``."""

    temperature: float | None = None
    base_url: str = "https://api.openai.com/v1"
    api_key_env: str = "OPENAI_API_KEY"
    timeout: float = 600.0


OPTIONS = frozenset({*chz.chz_fields(WeightsOptions), *chz.chz_fields(EndpointOptions)})
"""Options allowed after ``models.NAME.`` (NAME can contain dots)."""


def frozen_models(
    settings: Mapping[str, Any], base_url: str | None = None
) -> "dict[str, FrozenModel]":
    """Read and open the models. ``base_url`` is the address of the run's Tinker service."""
    return open_models(read_models(settings), base_url)


def open_models(
    models: "Mapping[str, ModelRef | FrozenModel]", base_url: str | None = None
) -> "dict[str, FrozenModel]":
    """Open the models for use in an Env. ``base_url`` is the address of the Tinker service."""
    return {
        name: model.open(base_url) if isinstance(model, ModelRef) else model
        for name, model in models.items()
    }


def read_models(settings: Mapping[str, Any]) -> "dict[str, ModelRef | FrozenModel]":
    """Look up the models in the settings by name, without heavy imports.

    Model objects passed from Python are returned unchanged.

    Raises:
        EvertError: A model, renderer or option does not exist.
    """
    models: dict[str, ModelRef | FrozenModel] = {}
    for name, options in _by_name(settings).items():
        model = options.pop("", None)
        if model is None:
            key = ".".join(["models", name, *[*options][:1]])
            raise UsageError(
                f"{key} has no model. Pass one with models.{name}=..., for example "
                f"models.{name}=evert-tiny."
            )
        is_named = isinstance(model, str)
        models[name] = read_model(f"models.{name}", model, options) if is_named else model
    return models


def _by_name(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Group the options by model name. The option "" is the model itself."""
    by_name: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        name, option = _split(key)
        by_name.setdefault(name, {})[option] = value
    return by_name


def _split(key: str) -> tuple[str, str]:
    """Split a key into a model name, which may contain dots, and an option ("" if missing)."""
    name, _, option = key.rpartition(".")
    return (name, option) if name and option in OPTIONS else (key, "")


def read_model(setting: str, text: str, options: Mapping[str, Any]) -> ModelRef:
    """Look up one model and parse its options. Raises the same errors as ``read_models``."""
    if text.startswith("<"):
        raise RecipeError(
            f"{setting} was {text}, a Python object that cannot be restored from the record. "
            f"Pass it to evert.train again, or choose a model, for example {setting}=evert-tiny."
        )

    def name_of(key: str) -> str:
        return f"{setting}.{key}"

    if (renderer := options.get("renderer_name")) is not None:
        check_renderer(renderer, name_of("renderer_name"))
    with _naming(setting):
        model = check_model(text, renderer)
    if model.kind == "server":
        raise RecipeError(
            f"{setting}={text} is a token-level server, which only `evert evaluate` and "
            "`evert play` accept. Frozen models need a chat completions endpoint, which the same "
            "server provides: "
            f"{setting}={model.base_url}#{model.model or 'MODEL'}."
        )
    is_endpoint = model.kind == "endpoint"
    address = {"base_url": model.base_url} if model.base_url else {}
    kind = EndpointOptions if is_endpoint else WeightsOptions
    settings: Any = read_settings(kind, options, address, name_of)
    values = {key: value for key, value in chz.asdict(settings).items() if value is not None}
    return replace(model, options=values)


@contextmanager
def _naming(setting: str) -> Iterator[None]:
    """Add the setting's name to the error if a model does not exist."""
    try:
        yield
    except ModelNameError as error:
        option = setting.removeprefix("models.")
        hint = f" Did you mean the option models.NAME.{option}?" if option in OPTIONS else ""
        raise ModelNameError(f"{setting}: {error}{hint}") from error


def fingerprint(
    settings: Mapping[str, Any], models: "Mapping[str, ModelRef | FrozenModel]"
) -> list[Any]:
    """Return everything that affects the models' replies: names, options and weight digests."""
    parts: list[Any] = []
    for name, options in sorted(_by_name(settings).items()):
        model, text = models[name], options.pop("")
        digests = model.digests if isinstance(model, ModelRef) else [repr(text)]
        parts.append([name, digests, sorted(options.items())])
    return parts


def in_words(settings: Mapping[str, Any]) -> str:
    """List the models in one line, with the names that the agent uses."""
    models = {name: options[""] for name, options in _by_name(settings).items()}
    texts = {n: m if isinstance(m, str) else type(m).__name__ for n, m in models.items()}
    return "frozen: " + ", ".join(f"{name} is {model}" for name, model in texts.items())


def hosts_of(models: "Mapping[str, FrozenModel]") -> tuple[str, ...]:
    """Return the hosts of all endpoints, which the embedded engine must allow."""
    from evert.bridge.models.remote import RemoteModel

    endpoints = [model for model in models.values() if isinstance(model, RemoteModel)]
    return tuple(host for endpoint in endpoints if (host := urlsplit(endpoint.base_url).hostname))


def needs_engine(models: "Mapping[str, FrozenModel]") -> bool:
    """Return whether any of the models is sampled by an engine."""
    from evert.bridge.models.tinker_model import TinkerModel

    return any(isinstance(model, TinkerModel) for model in models.values())


def check_frozen(models: "Mapping[str, FrozenModel]", *, embedded: bool) -> None:
    """Check that the run's engine can sample the frozen models, and that they have renderers."""
    from evert.bridge.models.tinker_model import TinkerModel
    from evert.bridge.tokens.bases import model_renderer, renderer_name_of
    from evert.trainers.engine.models.base_models import resolve_model

    for name, model in models.items():
        if not isinstance(model, TinkerModel):
            continue
        on_service = (model.model_path or "").startswith("tinker://")
        base = model.base_model or ""
        local = base in BASES or Path(base or "/nowhere").expanduser().is_dir()
        on_disk = bool(model.model_path) and not on_service
        if embedded and on_service:
            raise RecipeError(
                f"models.{name} is stored on a Tinker service ({model.model_path}), so the "
                "embedded engine cannot load it. Train on the service (model_name=), or choose a "
                "frozen model that is stored on this machine."
            )
        if not embedded and (on_disk or local):
            raise RecipeError(
                f"models.{name} is on this machine ({model.model_path or base}), but the run uses "
                "a service, which can only sample its own models. Choose one of those, or an "
                "endpoint that serves this model: models."
                f"{name}=http://127.0.0.1:8000/v1#MODEL."
            )
        if embedded and base:
            resolve_model(base)
        if local:
            model_renderer(base, model.renderer_name)
        elif base and model.renderer_name is None:
            renderer_name_of(base)


def check_episodes(
    settings: EpisodeSettings,
    models: "Mapping[str, FrozenModel]",
    agent: Any,
    task: object,
    *,
    embedded: bool,
) -> None:
    """Check the frozen models, and that the agent's Envs can be created, before any episode."""
    from evert.bridge.env.seats import episode_envs

    check_frozen(models, embedded=embedded)
    episode_envs(agent, task, settings.seats, **env_options(settings, models))


def pin_steps(settings: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Add a step to each ``runs/NAME``: on resume, the recorded step; otherwise, the latest one."""
    return {key: _pin_step(key, text, str(recorded.get(key, ""))) for key, text in settings.items()}


def _pin_step(key: str, value: Any, before: str) -> Any:
    if _split(key)[1] or not isinstance(value, str) or split_step(value)[1]:
        return value
    if before.startswith(f"{value}@"):
        return before
    with _naming(f"models.{key}"):
        model = None if value.startswith("<") else find_model(value)
    return f"{value}@{model.step}" if model and model.step else value
