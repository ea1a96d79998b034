"""``evert model export model=runs/NAME out=FOLDER``: export trained weights."""

import os
from contextlib import nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any

import chz

from evert.bridge.errors import EvertError, MissingPackageError
from evert.bridge.tokens.bases import BASES, base_path, model_renderer, renderer_name_of
from evert.bridge.tokens.pretrained import trusting_code
from evert.trainers.config.backend import KEY
from evert.trainers.config.command import Command
from evert.trainers.config.fields import setting, trust
from evert.trainers.config.model_names import (
    SERVICE,
    ModelRef,
    find_model,
    local_weights,
    recorded_renderer,
)
from evert.trainers.rundir.folder import RunFolder

FORMATS = {
    "merged": ("float32", "bfloat16", "float16"),
    "adapter": ("float32",),
    "gguf": ("f32", "f16", "bf16", "q8_0"),
}
"""Weight dtypes that each format supports. The first one is the default."""

BAR = 1e-4  # maximum log-probability difference in float32

USAGE = """\
Usage: evert model export model=runs/NAME out=FOLDER [format=...] [dtype=...]

  evert model export model=runs/NAME out=my-model                  in Hugging Face format
  evert model export model=runs/NAME out=my-model dtype=bfloat16   half the size
  evert model export model=runs/NAME@20 out=lora format=adapter    for peft and vLLM
  evert model export model=runs/NAME out=gguf format=gguf dtype=q8_0  for llama.cpp and Ollama

To verify the export, evert loads it again and compares its log-probabilities with those of the
original weights. If they differ by more than 1e-4 in float32, nothing is written.

Settings:
"""


class ExportError(EvertError, ValueError):
    """The weights cannot be exported in this format or to this folder."""


@chz.chz
class ModelExportSettings:
    """The weights to export, and the format."""

    model: str = chz.field(doc="runs/NAME, runs/NAME@STEP, tinker://..., a base model or a folder")
    out: str = chz.field(doc="output folder; must be new or empty")
    format: str = setting("merged", f"one of {', '.join(FORMATS)}")
    dtype: str = setting(
        "",
        "; ".join(f"{key}: {', '.join(FORMATS[key])}" for key in FORMATS)
        + " (default: the first one listed for the format)",
    )
    trust_remote_code: bool = trust()


def _run(settings: ModelExportSettings) -> int:
    dtype, named_weights = _dtype_and_weights(settings)
    with trusting_code(settings.trust_remote_code):
        print(export(settings, dtype, named_weights))
    return 0


def _dtype_and_weights(settings: ModelExportSettings) -> tuple[str, ModelRef]:
    """Validate the settings before the slow imports; return the dtype and the weights."""
    if (form := settings.format) not in FORMATS:
        raise ExportError(f"format={form}: expected one of {', '.join(FORMATS)}.")
    dtype = settings.dtype or FORMATS[form][0]
    if dtype not in FORMATS[form]:
        expected = ", ".join(FORMATS[form])
        raise ExportError(f"dtype={dtype}: with format={form}, expected one of {expected}.")
    out = Path(settings.out).expanduser()
    if os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(
            f"{out} already exists and is not empty. Choose a different folder with out=...."
        )
    if form == "gguf" and find_spec("gguf") is None:
        raise MissingPackageError(
            "format=gguf requires the gguf package, which is not installed. Install it with: pip "
            "install 'evert[gguf]'."
        )
    named_weights: Any = (
        find_model(settings.model)
        if settings.model.startswith(SERVICE)
        else local_weights(settings.model, "model", "exported")
    )
    if _is_hosted(named_weights):
        if not os.environ.get(KEY):
            raise ExportError(
                f"{settings.model} is stored on a Tinker service. Set {KEY} to your API key."
            )
    elif form == "adapter":
        folder = named_weights.folder if named_weights.model_path else None
        if folder is None or not (folder / "adapter_config.json").exists():
            raise ExportError(f"{settings.model} has no adapter. Remove format=adapter.")
    return dtype, named_weights


def _is_hosted(named_weights: ModelRef) -> bool:
    return named_weights.model_path is not None and named_weights.folder is None


def export(settings: ModelExportSettings, dtype: str, named_weights: ModelRef) -> str:
    """Export the weights to the folder, and return a summary for the user.

    Raises:
        EvertError: The folder cannot be written, or the exported model's log-probabilities differ
            from the run's. Nothing is written to ``out`` in that case.
    """
    from evert.trainers.engine.models import exporting
    from evert.trainers.engine.models.importing import draft_of, greedy_reply

    out = Path(settings.out).expanduser()
    with draft_of(out) as draft:
        weights = _Weights(named_weights, draft.parent)
        draft.mkdir()
        if settings.format == "adapter" and weights.folder is not None:
            exporting.write_adapter(weights.source, weights.folder, weights.tokenizer, draft)
        else:
            model = exporting.merged_model(weights.base, weights.folder)
            temperature = float((named_weights.run.get("cookbook") or {}).get("temperature") or 1)
            tokenizer, stops = weights.tokenizer, weights.stops
            exporting.write_model(model, tokenizer, draft, dtype, stops, temperature)
            del model  # free the memory before loading the export
        (draft / "README.md").write_text(_card(settings, dtype, weights))
        model = exporting.load_export(draft, draft.parent)
        logprobs = exporting.token_logprobs(model, weights.ids)
        difference = float((logprobs - logprobs.new_tensor(weights.logprobs)).abs().max())
        if dtype in ("float32", "f32") and not weights.hosted and not difference <= BAR:
            raise ExportError(
                f"The log-probabilities of the exported weights differ by {difference:.2g} from "
                f"the run's; expected {BAR:g} or less. Nothing was written. Please report this bug."
            )
        reply = greedy_reply(model, weights.prompt, weights.stops)
    return _summary(settings, weights, difference, reply)


class _Weights:
    """The weights on disk, with reference outputs computed by the run's own engine."""

    def __init__(self, named_weights: ModelRef, work: Path) -> None:
        import tinker

        from evert.trainers.engine.embedded import embedded_engine
        from evert.trainers.engine.models.exporting import export_tokenizer
        from evert.trainers.engine.models.importing import QUESTION, REPLY, SAMPLES

        self.named_weights, self.hosted = named_weights, _is_hosted(named_weights)
        engine = embedded_engine(named_weights.checkpoints, device="cpu", dtype="float32")
        with nullcontext() if self.hosted else engine:
            service: Any = tinker.ServiceClient(base_url=named_weights.run.get("base_url"))
            self.base = str(named_weights.model)
            self.folder = named_weights.folder if named_weights.model_path else None
            if self.hosted:
                self.base, self.folder = _download(service, named_weights, work)
            self.renderer = recorded_renderer(named_weights.run) or renderer_name_of(self.base)
            renderer = model_renderer(self.base, self.renderer)
            self.tokenizer = export_tokenizer(self.base, self.renderer)
            stops: Any = renderer.get_stop_sequences()
            self.stops = [s for s in stops if isinstance(s, int)] or [self.tokenizer.eos_token_id]
            messages: Any = [{"role": "user", "content": QUESTION}]
            prompt = renderer.build_generation_prompt(messages)
            base = None if named_weights.model_path else self.base
            client = service.create_sampling_client(named_weights.model_path, base)
            how = tinker.SamplingParams(max_tokens=REPLY, temperature=0, stop=stops)
            self.prompt = prompt.to_ints()
            self.reply = client.sample(prompt, 1, how).result().sequences[0].tokens
            text = self.tokenizer.encode("".join(SAMPLES), add_special_tokens=False)
            self.ids = [*self.prompt, *self.reply, *text]
            self.has_template = bool(self.tokenizer.chat_template) and self.prompt == (
                self.tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, return_dict=False
                )
            )
            model_input = tinker.ModelInput.from_ints(self.ids)
            self.logprobs = client.compute_logprobs(model_input).result()[1:]

        folder = base_path(self.base) if self.base in BASES else Path(self.base).expanduser()
        self.on_hub = not folder.is_dir()
        self.source = self.base if self.on_hub else str(folder.absolute())  # recorded in the export


def _download(service: Any, named_weights: ModelRef, work: Path) -> tuple[str, Path]:
    """Download weights from a service. Return the base model's name and the adapter's folder."""
    from tinker_cookbook import weights
    from tinker_cookbook.exceptions import TinkerCookbookError

    from evert.trainers.engine.models.base_models import resolve_model

    path = str(named_weights.model_path)
    run = service.create_rest_client().get_training_run_by_tinker_path(path).result()
    checkpoint, adapter = str(work / "tinker"), work / "adapter"
    base = resolve_model(run.base_model)
    try:
        url = named_weights.run.get("base_url")
        weights.download(tinker_path=path, output_dir=checkpoint, base_url=url)
        weights.build_lora_adapter(
            base_model=base, adapter_path=checkpoint, output_path=str(adapter)
        )
    except TinkerCookbookError as error:
        raise ExportError(f"{path} could not be downloaded: {error}") from error
    return run.base_model, adapter


def _card(settings: ModelExportSettings, dtype: str, weights: _Weights) -> str:
    """Return the model card, with Hub metadata and a table that shows the weights' origin."""
    from huggingface_hub import ModelCardData
    from huggingface_hub.file_download import try_to_load_from_cache
    from huggingface_hub.repocard import metadata_load

    named_weights, source, on_hub = weights.named_weights, weights.source, weights.on_hub
    readme = try_to_load_from_cache(source, "README.md") if on_hub else f"{source}/README.md"
    terms = None
    with suppress(Exception):  # the README may be missing or malformed
        terms = (metadata_load(str(readme)) or {}).get("license")
    data = ModelCardData(
        license=terms,
        base_model=source if on_hub else None,
        library_name="peft" if settings.format == "adapter" else None,
        pipeline_tag="text-generation",
        tags=["evert", "reinforcement-learning"],
    )
    run, step = named_weights.run, f", step {named_weights.step}" if named_weights.step else ""
    rows = {
        "run": f"{settings.model}{step}",
        "task": run.get("env") or run.get("agent"),
        "reward": _reward(named_weights),
        "base": source if on_hub else f"{weights.base}, a local folder: {source}",
        "license of the base": terms or "unknown",
        "weights": f"{settings.format}, {dtype}",
        "renderer": weights.renderer,
    }
    table = "\n".join(f"| {key} | {text} |" for key, text in rows.items() if text)
    title = Path(settings.out).name
    return f"---\n{data.to_yaml()}\n---\n\n# {title}\n\n| | |\n|---|---|\n{table}\n"


def _reward(named_weights: ModelRef) -> str:
    """Return the rewards on held-out tasks as text, or "" if these weights were not scored."""
    run = None if named_weights.checkpoints is None else RunFolder(named_weights.checkpoints.parent)
    if run is None or not run.before or str(run.result.get("steps")) != named_weights.step:
        return ""
    before, after = (scores["temperature_1"]["reward"] for scores in (run.before, run.after))
    return f"{before:.3g} before and {after:.3g} after, on held-out tasks at temperature 1"


def _summary(
    settings: ModelExportSettings, weights: _Weights, difference: float, reply: list[int]
) -> str:
    from evert.trainers.engine.models.importing import QUESTION

    out, source = quote(settings.out), quote(weights.source)
    same = sum(a == b for a, b in zip(reply, weights.reply, strict=False))
    count = f"{same} of {len(weights.reply)} tokens match the run"
    answer = weights.tokenizer.decode(reply, skip_special_tokens=True).strip()
    template = "the exported chat template renders prompts exactly as in training"
    if not weights.has_template:
        template = (
            f"other programs will render prompts differently from the run's {weights.renderer}"
        )
    ask = f'pipeline("text-generation", "{settings.out}")([{{"role": "user", "content": "Hi"}}])'
    python = f"python -c {quote(f'from transformers import pipeline; print({ask})')}"
    rank = weights.named_weights.run.get("lora_rank") or 32
    commands = {
        "merged": [python, f"vllm serve {out}"],
        "adapter": [
            python,
            f"vllm serve {source} --enable-lora --max-lora-rank {rank} "
            f"--lora-modules trained={out}",
        ],
        "gguf": [
            f"llama-server -m {out}/model.gguf --jinja",
            f"ollama create {quote(Path(settings.out).name)} -f {out}/Modelfile",
        ],
    }[settings.format]
    lines = [
        f"written: {settings.out}",
        f"  verified    reloaded; log-probabilities differ by at most {difference:.1e}",
        f"  chat        {template}",
        f"  sample      {QUESTION} -> {answer} ({count})",
    ]
    if settings.format == "adapter" and not weights.on_hub:
        lines += [
            f"  base        {weights.source}, a local folder; on other machines, change",
            "              base_model_name_or_path in adapter_config.json to its path there",
        ]
    return "\n".join([*lines, "To use it:", *(f"  {command}" for command in commands)])


COMMAND = Command(ModelExportSettings, USAGE, _run, "model", "model export")
main = COMMAND.main
