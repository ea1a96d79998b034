"""Hostile and damaged model folders, with the expected results. Code in a folder must never run.

Each row modifies a copy of the bundled base model and loads it in a certain way. If a row contains
code and the code runs, it creates the file ``RAN`` in the folder, so that the test notices.
"""

import asyncio
import contextlib
import io
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tinker
import torch
from tinker_cookbook import tokenizer_utils

from evert.bridge.models.tinker_model import TinkerModel, open_weights
from evert.bridge.tokens.bases import BASE_RENDERER, model_renderer
from evert.trainers.cli import main
from evert.trainers.config.train import as_record, read_train_settings
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.engine.models.pictures import PictureReader
from evert.trainers.workers.travel import pack, unpack

RAN = "RAN"
CODE = f"""
import os
from transformers import PreTrainedConfig, PreTrainedTokenizerFast, Qwen3ForCausalLM
open(os.path.join({{folder!r}}, "{RAN}"), "w").close()
class EvilConfig(PreTrainedConfig): model_type = "evil"
class EvilTokenizer(PreTrainedTokenizerFast): pass
class EvilModel(Qwen3ForCausalLM): pass
class EvilImages: pass
def generate(*args, **kwargs): pass
"""

LOADED = "it is loaded"

Change = Callable[[Path], object]
Way = Callable[[str], object]


@dataclass(frozen=True)
class Row:
    """A model folder: how the copy of the bundled base model is changed, and how it is loaded."""

    what: str
    change: Change
    way: Way
    says: str  # LOADED or an error message; … matches anything, FOLDER is the folder

    def __str__(self) -> str:
        return f"{self.what}, {self.way.__name__.replace('_', ' ')}"


# -- ways to load a folder -------------------------------------------------------------------------


def as_a_renderers_model(name: str) -> object:
    """Load the folder's tokenizer the way datasets, evaluations and frozen models do."""
    return model_renderer(name, BASE_RENDERER)


def to_the_cookbook(name: str) -> object:
    """Load the folder's tokenizer with the Cookbook, as its training loop does."""
    with embedded_engine(device="cpu"):
        return tokenizer_utils.get_tokenizer(name)


def to_the_cookbook_with_a_variant(name: str) -> object:
    """Load the folder by a name with a suffix, as in Tinker's names for model variants."""
    return to_the_cookbook(f"{name}:peft:4096")


def to_sample_from(name: str) -> object:
    """Load the folder for sampling, as ``evert serve`` does."""
    with embedded_engine(device="cpu"):
        client: Any = tinker.ServiceClient().create_sampling_client(base_model=name)
        return client.sampler


def to_show_images_to(name: str) -> object:
    """Load the folder's image processor, as when a prompt has an image."""
    return PictureReader(name)._processor


def in_a_worker(name: str) -> object:
    """Send a renderer for the folder to a worker."""
    renderer = model_renderer("evert-tiny", BASE_RENDERER)
    renderer._model_name = name
    tokenizer_utils.unregister_tokenizer(name)
    return unpack(pack(renderer))


def to_a_command(*words: str) -> str:
    """Run an evert command and return its output, or raise its error."""
    output = io.StringIO()
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
        status = main(list(words))
    last = next((line for line in output.getvalue().split("\n") if line.startswith("error:")), "")
    if status:
        raise RuntimeError(last.removeprefix("error: ") or output.getvalue())
    return output.getvalue()


def to_evert_plan(name: str) -> object:
    return to_a_command("engine", "plan", f"model={name}", "device=cpu")


def evaluating(name: str, *more: str) -> object:
    words = ("env=identity", "seeds=1", "max_tasks=1", f"out={name}-evaluation", "device=cpu")
    return to_a_command("evaluate", *words, f"renderer_name={BASE_RENDERER}", *more)


def to_evert_evaluate(name: str) -> object:
    return evaluating(name, f"models={name}")


def as_a_frozen_model(name: str) -> object:
    """Load the folder as a frozen model, as with ``models.user=``."""
    with embedded_engine(device="cpu"):
        return asyncio.run(open_weights(TinkerModel(name, renderer_name=BASE_RENDERER)))


def by_the_record_of_a_run(name: str) -> object:
    """Evaluate a run that was trained with ``trust_remote_code=True``."""
    run = Path(f"{name}-run")
    given = {"env": "identity", "model_name": name, "renderer_name": BASE_RENDERER}
    settings = as_record(read_train_settings({**given, "trust_remote_code": True}, {}))
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"settings": settings}))
    saved = {"name": "final", "batch": 1, "sampler_path": "tinker://a/sampler_weights/final"}
    (run / "checkpoints.jsonl").write_text(json.dumps(saved) + "\n")
    return evaluating(name, f"models={run}")


def to_evert_train(name: str) -> object:
    words = ("env=identity", "steps=1", "engine=embedded", "device=cpu", f"log_path={name}-run")
    return to_a_command("train", *words, f"model_name={name}", f"renderer_name={BASE_RENDERER}")


# -- changes to a folder ---------------------------------------------------------------------------


def code(folder: Path, file: str = "evil.py") -> None:
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(CODE.format(folder=str(folder)))


def edit(file: str, **fields: object) -> Change:
    """Return a change that sets fields of a JSON file and adds code that the fields may use."""

    def change(folder: Path) -> None:
        path = folder / file
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**before, **fields}))
        code(folder)

    return change


def write(file: str, text: str) -> Change:
    return lambda folder: (folder / file).write_text(text)


def without(file: str) -> Change:
    return lambda folder: (folder / file).unlink()


def replaced(file: str, make: Change) -> Change:
    def change(folder: Path) -> None:
        (folder / file).unlink(missing_ok=True)
        make(folder / file)

    return change


def sparse(path: Path) -> None:
    """Create a sparse 3 GB file."""
    with path.open("wb") as file:
        file.truncate(3 * 2**30)


class Pickled:
    """An object that runs code when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder / RAN),)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Pickled(folder)}, folder / "pytorch_model.bin")


def bare_pickle(folder: Path) -> None:
    """Replace the weights with a plain Python pickle."""
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Pickled(folder), protocol=2))


OWN_TOKENIZER = edit(
    "tokenizer_config.json",
    auto_map={"AutoTokenizer": ["evil.EvilTokenizer", "evil.EvilTokenizer"]},
    tokenizer_class="EvilTokenizer",
)
OWN_CONFIG = edit(
    "config.json",
    auto_map={"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilModel"},
    model_type="evil",
)
TEMPLATE = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    f"{{{{ cycler.__init__.__globals__.os.mkdir('{RAN}') }}}}"
)

NEEDS = (
    "Model 'FOLDER' needs the Python code that comes with it (auto_map in %s). The code was not "
    "run. Review it, and if you trust it, pass trust_remote_code=True."
)
TOKENIZER = NEEDS % (
    "tokenizer_config.json names {'AutoTokenizer': ['evil.EvilTokenizer', 'evil.EvilTokenizer']}"
)
CONFIG = NEEDS % "config.json names {'AutoConfig': 'evil.EvilConfig', …"
DAMAGED = "Model 'FOLDER' could not be loaded. Check the files in FOLDER; "
SAYS = f"{DAMAGED}the loader raised "
PICKLE = f"{DAMAGED}its weights are a pickle that contains more than tensors; use .safetensors"

ROWS = [
    # code that is needed to load the model
    *(
        Row("a tokenizer of its own", OWN_TOKENIZER, way, TOKENIZER)
        for way in (
            as_a_renderers_model, to_the_cookbook, to_sample_from, to_evert_evaluate,
            as_a_frozen_model, to_evert_train,
        )
    ),
    Row("a tokenizer of its own", OWN_TOKENIZER, to_the_cookbook_with_a_variant,
        TOKENIZER.replace("FOLDER", "FOLDER:peft:4096")),
    Row("a tokenizer of its own", OWN_TOKENIZER, in_a_worker, TOKENIZER),
    *(
        Row("a model type of its own", OWN_CONFIG, way, CONFIG)
        for way in (
            to_sample_from, to_evert_plan, to_evert_evaluate, to_evert_train, by_the_record_of_a_run
        )
    ),
    Row("a tokenizer in the old format", edit("tokenizer_config.json",
        auto_map=["evil.EvilTokenizer", None], tokenizer_class="EvilTokenizer"),
        as_a_renderers_model,
        NEEDS % "tokenizer_config.json names ['evil.EvilTokenizer', None]"),
    Row("a tokenizer from the Hub", edit("tokenizer_config.json",
        auto_map={"AutoTokenizer": ["them/theirs--evil.Theirs", None]},
        tokenizer_class="EvilTokenizer"),
        as_a_renderers_model,
        NEEDS % "tokenizer_config.json names {'AutoTokenizer': ['them/theirs--evil.Theirs'…"),
    Row("images read by its own code", edit("preprocessor_config.json",
        auto_map={"AutoImageProcessor": "evil.EvilImages"}, image_processor_type="EvilImages"),
        to_show_images_to, "contains a chunk that is not text, but FOLDER is a model of type …"),
    Row("images read by its own code, for a vision model",
        lambda folder: (edit("config.json", model_type="qwen3_vl")(folder),
        edit("preprocessor_config.json", auto_map={"AutoImageProcessor": "evil.EvilImages"},
        image_processor_type="EvilImages")(folder)), to_show_images_to,
        NEEDS % "preprocessor_config.json names {'AutoImageProcessor': 'evil.EvilImages'}"),
    # code that is not needed
    Row("code for a tokenizer that transformers has", edit("tokenizer_config.json",
        auto_map={"AutoTokenizer": ["evil.EvilTokenizer", "evil.EvilTokenizer"]},
        tokenizer_class="Qwen2Tokenizer"), to_the_cookbook, LOADED),
    Row("code for a model that transformers has", edit("config.json",
        auto_map={"AutoModelForCausalLM": "evil.EvilModel", "AutoConfig": "evil.EvilConfig"}),
        to_sample_from, LOADED),
    Row("custom generation code", lambda folder: code(folder, "custom_generate/generate.py"),
        to_sample_from, LOADED),
    Row("a tokenizer class that is a path", edit("tokenizer_config.json",
        tokenizer_class="../evil.EvilTokenizer"), as_a_renderers_model, LOADED),
    Row("a chat template that calls the system", write("chat_template.jinja", TEMPLATE),
        to_evert_evaluate, LOADED),
    Row("weights that are a pickle with code", pickled, to_sample_from, PICKLE),
    Row("weights that are a bare pickle", bare_pickle, to_sample_from, PICKLE),
    # other folders
    Row("an adapter of another folder's model", edit("adapter_config.json",
        base_model_name_or_path="/elsewhere", peft_type="LORA"), to_sample_from,
        "Model 'FOLDER' points to the folder FOLDER, which contains a LoRA "
        "adapter (adapter_config.json); expected a full model. Merge the adapter into its base …"),
    Row("an index that points to weights in another folder", replaced("model.safetensors",
        lambda path: edit("model.safetensors.index.json", metadata={},
        weight_map={"a": "../../w"})(path.parent)), to_sample_from,
        "Model 'FOLDER': model.safetensors.index.json refers to ../../w, missing from FOLDER; "
        "expected all weight files in the folder. Download the whole folder again."),
    # not a regular file
    Row("a pipe for a tokenizer", replaced("tokenizer.json", os.mkfifo), as_a_renderers_model,
        "Model 'FOLDER': 'tokenizer.json' in FOLDER is a pipe, a device or a socket; expected a "
        "regular file. Text files may have at most 268,435,456 bytes. Check where the folder comes "
        "from."),
    Row("a pipe for a tokenizer", replaced("tokenizer.json", os.mkfifo), to_evert_evaluate,
        "Model 'FOLDER': 'tokenizer.json' in FOLDER is a pipe, a device or a socket; …"),
    Row("a link to a device", replaced("config.json", lambda path: path.symlink_to("/dev/zero")),
        to_sample_from, "Model 'FOLDER' points to the folder FOLDER, which has no config.json. …"),
    Row("a link to itself", replaced("config.json",
        lambda path: path.symlink_to("config.json")), to_sample_from,
        "Model 'FOLDER' points to the folder FOLDER, which has no config.json. …"),
    Row("a configuration of 3 GB", replaced("config.json", sparse), to_evert_plan,
        "Model 'FOLDER': 'config.json' in FOLDER has 3,221,225,472 bytes; expected a regular …"),
    # damaged files
    Row("a configuration that is not JSON", write("config.json", "{"), to_evert_plan,
        f"{SAYS}OSError: It looks like the config file at 'FOLDER/config.json' is not a valid JSON "
        "file."),
    Row("a deeply nested configuration", write("config.json", "[" * 100_000), to_evert_plan,
        f"{SAYS}RecursionError: …"),
    Row("a configuration with terminal escape codes",
        edit("config.json", model_type="\x1b[2J\x07evil"), to_evert_plan,
        f"{SAYS}ValueError: The checkpoint you are trying to load has model type `[2Jevil` but …"),
    Row("negative sizes", edit("config.json", hidden_size=-8), to_evert_plan,
        f"{SAYS}RuntimeError: Trying to create tensor with negative dimension -8: [512, -8]"),
    Row("a truncated tokenizer", write("tokenizer.json", "{"), as_a_renderers_model,
        f"{SAYS}JSONDecodeError: …"),
    Row("truncated weights", lambda folder: os.truncate(folder / "model.safetensors", 5000),
        to_sample_from, f"{SAYS}SafetensorError: …"),
    Row("weights of a different shape", edit("config.json", hidden_size=256), to_sample_from,
        "Model 'FOLDER' has weights with the wrong shape: model.embed_tokens.weight ([512, 128] in "
        "the file, [512, 256] in the model), …"),
    Row("no weights", without("model.safetensors"), to_sample_from,
        f"{SAYS}OSError: Error no file named model.safetensors, or pytorch_model.bin, found in "
        "directory FOLDER."),
]  # fmt: skip
"""The table of model folders."""
