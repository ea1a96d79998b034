"""Look up models by name. All commands accept these names:

    evert-tiny-20q           a bundled base model, Hugging Face folder, Hub model or service model
    runs/NAME, runs/NAME@20  weights of a training run: the latest, or after 20 steps
    tinker://...             weights on a Tinker service
    openai:gpt-5-mini        a model at an OpenAI-compatible chat completions endpoint
    https://host/v1#model    the same, with the endpoint's address
    vllm:http://host/v1#m    a model on a token-level server: vLLM, llama.cpp or `evert serve`;
                             #m can be omitted if the server only has one model

``find_model`` only looks at names and folders. It does not load anything.
"""

import hashlib
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from evert.bridge.errors import EvertError, InvalidModelError, did_you_mean
from evert.bridge.tokens.bases import (
    BASE_MODEL,
    BASES,
    TEMPLATE,
    base_path,
    renderer_name_of,
    with_variables,
)
from evert.envs.games import games
from evert.trainers.config.train import TrainSettings
from evert.trainers.rundir.folder import STORE, recorded_settings
from evert.trainers.system.files import CHECKPOINTS, read_jsonl

if TYPE_CHECKING:
    from evert.bridge.models.remote import RemoteModel
    from evert.bridge.models.tinker_model import TinkerModel

ENDPOINT, SERVICE, SERVER = "openai:", "tinker://", "vllm:"
ADDRESS = ("http://", "https://")
ELSEWHERE = ", tinker://..., openai:MODEL, https://HOST/v1#MODEL, vllm:http://HOST/v1#MODEL"
WEIGHTS = ("*.safetensors", "*.bin", "*config.json", "tokenizer*", "*.jinja")
"""Files in a model folder that affect the model's replies."""


class ModelNameError(EvertError, ValueError):
    """The model does not exist: there is no such run, checkpoint, folder or address."""


@dataclass(frozen=True)
class ModelRef:
    """A reference to a model.

    Attributes:
        kind: "weights" for the embedded engine or a service, "endpoint" for chat completions, or
            "server" for a token-level server.
        model: The model's name at the endpoint or server; None means the server's only model. For
            weights, the name of the base model; None if only the service knows it.
        base_url: Address of the endpoint or server, if the name includes one.
        model_path: tinker:// path of trained weights; None for a base model.
        step: Training step after which the weights were saved; None if they are not from a run.
        run: Recorded settings of the run that trained the weights.
        checkpoints: The run's checkpoint folder; None if the weights are not from a run.
        options: Sampling options for ``open``.
    """

    kind: Literal["weights", "endpoint", "server"]
    model: str | None
    base_url: str | None = None
    model_path: str | None = None
    step: str | None = None
    run: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path | None:
        """Folder with the weights, or None if they are not on this machine."""
        if self.model_path is None:
            name = self.model or ""
            folder = base_path(name) if name in BASES else Path(name).expanduser()
        elif self.checkpoints is not None:
            folder = self.checkpoints / self.model_path.removeprefix(SERVICE)
        else:
            return None
        return folder if folder.is_dir() else None

    @property
    def digests(self) -> list[str | None]:
        """Identify the model by the digests of its files, or by its name and address.

        Assumes that weights on the Hub or on a service never change under the same name.
        """
        if self.kind != "weights":
            return [self.model, self.base_url]
        parts = list[str | None]()
        folder = self.folder or Path("/nowhere")
        for path in sorted({path for pattern in WEIGHTS for path in folder.glob(pattern)}):
            with path.open("rb") as file:
                parts += [path.name, hashlib.file_digest(file, "blake2b").hexdigest()]
        return parts or [str(self.model_path or self.model)]

    def open(self, service: str | None = None) -> "RemoteModel | TinkerModel":
        """Open the model for use in an Env; ``service`` is the address of the Tinker service."""
        from evert.bridge.models.remote import RemoteModel
        from evert.bridge.models.tinker_model import TinkerModel

        if self.kind == "endpoint":
            return RemoteModel(str(self.model), **self.options)
        path = self.model_path
        if path is not None and self.folder is not None:
            path = str(self.folder.resolve())
        sampling = {"renderer_name": recorded_renderer(self.run), **self.options}
        return TinkerModel(self.model, path, base_url=service, **sampling)


def find_model(name: str, players: Collection[str] = (), *, is_local: bool = False) -> ModelRef:
    """Look up a model by name.

    If there is no such model, the error message also suggests ``players``. With ``is_local``, the
    only models that it suggests are local weights.
    """
    if name.startswith(ENDPOINT):
        return ModelRef("endpoint", name.removeprefix(ENDPOINT))
    if name.startswith(SERVER):
        address, _, model = name.removeprefix(SERVER).partition("#")
        if not address.startswith(ADDRESS):
            raise ModelNameError(
                f"{name} has no address; expected the address of a token-level server, "
                "vllm:http://HOST:PORT/v1, optionally with a model name: "
                "vllm:http://HOST:PORT/v1#MODEL."
            )
        return ModelRef("server", model or None, address.rstrip("/"))
    if name.startswith(ADDRESS):
        address, _, model = name.partition("#")
        if not model:
            raise ModelNameError(
                f"{name} is an address without a model. Add the model's name after a #, for "
                f"example {name}#gpt-5-mini."
            )
        return ModelRef("endpoint", model, address)
    if name.startswith(SERVICE):
        return ModelRef("weights", None, model_path=name)
    folder, step = split_step(name)
    if recorded := recorded_settings(folder, TrainSettings):
        return _of_run(name, Path(folder).expanduser(), step, recorded)
    if name not in BASES and not (name and Path(name).expanduser().is_dir()):
        _check_name(name, players, is_local)
    return ModelRef("weights", name)


def check_player(name: str, game: str, players: Collection[str]) -> None:
    """Raise an error if ``name`` is a player of another game but not in ``players``."""
    other_games = [other_game for other_game, entry in games().items() if name in entry.players]
    if name not in players and other_games and not Path(name).exists():
        hint = f"its players are {', '.join(players)}" if players else "it has no players"
        raise ModelNameError(
            f"{game} has no player {name!r}, unlike {' and '.join(other_games)}; {hint}. Pass "
            f"{'one, ' if players else ''}a run or a model: models=runs/NAME,evert-tiny."
        )


def split_step(name: str) -> tuple[str, str]:
    """Split ``runs/NAME@20`` into folder and step. Folder names can also contain an @."""
    folder, at, step = name.rstrip("/").rpartition("@")
    if not at or "/" in step or Path(name).expanduser().is_dir():
        return name, ""
    return folder, step


def check_model(
    name: str, renderer_name: str | None = None, players: Collection[str] = ()
) -> ModelRef:
    """Look up a model and check that it has a renderer, without heavy imports.

    Raises:
        ModelNameError: The model does not exist, or there is no renderer for it.
    """
    model = find_model(name, players)
    if renderer_name or model.kind != "weights" or not model.model:
        return model
    if not model.run.get("renderer_name"):
        try:
            renderer_name_of(model.model)
        except InvalidModelError as error:
            hint = f" Or did you mean a player? Players: {', '.join(players)}." if players else ""
            raise ModelNameError(f"{error}{hint}") from error
    return model


OR_RUN = ", runs/NAME or runs/NAME@STEP"
"""Text that is added to the expected models in an error message if runs are accepted too."""


def check_weights(model: ModelRef, setting: str, purpose: str, more: str = "") -> ModelRef:
    """Return ``model`` if it refers to weights with a known base model, or else raise an error."""
    if model.kind == "weights" and model.model is not None:
        return model
    raise ModelNameError(
        f"{setting} is not on this machine, so it cannot be {purpose} here; expected one of "
        f"evert's base models, a Hugging Face folder, the name of a model on the Hub{more}."
    )


def local_weights(name: str, setting: str, purpose: str) -> ModelRef:
    """Look up weights that must be on this machine. ``purpose`` is "served", "exported", ...

    Raises:
        ModelNameError: There are no such weights on this machine.
    """
    weights = check_weights(find_model(name, is_local=True), f"{setting}={name}", purpose, OR_RUN)
    if not is_here(weights.model or ""):
        raise ModelNameError(
            f"{setting}={name} is not a bundled base model, a folder, or a model in the local "
            f"Hugging Face cache. Check the name, or download it first with: hf download {name}."
        )
    return weights


def is_here(base_model: str) -> bool:
    """Return whether a base model is available locally: bundled, a folder, or in the HF cache."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.file_download import try_to_load_from_cache

    if base_model in BASES or Path(base_model).expanduser().is_dir():
        return True
    try:
        return isinstance(try_to_load_from_cache(base_model, "config.json"), str)
    except HFValidationError:
        return False


def _check_name(name: str, players: Collection[str], is_local: bool) -> None:
    path = Path(split_step(name)[0]).expanduser()
    is_path = "/" in name and path.parent.is_dir() and not _is_known(name)
    candidates = {*map(str, path.parent.iterdir())} if is_path else {*players, *BASES}
    candidates.discard(str(Path(name).expanduser()))  # never suggest the name itself
    near = did_you_mean(str(path), candidates, "{}")
    strange = not name or name.count("/") > 1 or name.startswith((".", "~", "/", "<", "runs/"))
    if near or is_path or strange:
        hint = near or (_beside(path) if "/" in name else "")
        raise ModelNameError(
            f"There is no run or model at {name!r}.{hint} Expected a run folder (runs/NAME), a "
            f"Hugging Face folder, a model name{ELSEWHERE * (not is_local)}"
            + (f", or {' or '.join(players)}." if players else ".")
        )


def _beside(path: Path) -> str:
    if not path.parent.is_dir():
        return f" There is no folder {path.parent} in {Path.cwd()}."
    names = ", ".join(sorted(child.name for child in path.parent.iterdir() if child.is_dir()))
    return (
        f" {path.parent} contains "
        f"{textwrap.shorten(names, 200, placeholder=' ...') or 'no folder'}."
    )


def _is_known(name: str) -> bool:
    """Return whether the Cookbook knows the model. If so, ``Qwen/...`` is a name and not a path."""
    try:
        renderer_name_of(name)
    except InvalidModelError:
        return False
    return True


def _of_run(name: str, folder: Path, step: str, recorded: Mapping[str, Any]) -> ModelRef:
    saved = {
        str(record.get("batch", record["name"])): str(record["sampler_path"])
        for record in read_jsonl(folder / CHECKPOINTS)
        if record.get("sampler_path")
    }
    if not saved or (step and step not in saved):
        raise ModelNameError(
            f"{name}: the run in {folder} has no weights "
            + (f"for step {step}, only for {', '.join(saved)}." if saved else "yet.")
        )
    step = step or [*saved][-1]
    base = str(recorded.get("model_name") or BASE_MODEL)
    return ModelRef("weights", base, None, saved[step], step, recorded, folder / STORE)


def recorded_renderer(run: Mapping[str, Any]) -> str | None:
    """Return the renderer that a run recorded, or None for the one that matches the model."""
    name: str | None = run.get("renderer_name")
    variables = run.get("chat_template") or {}
    return with_variables(name or TEMPLATE, variables) if variables else name
