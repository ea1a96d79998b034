"""The oracle of ``test_oracle.py``: models from many families, and what transformers computes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.trainers.kit import shaken
from tinker import types
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from evert.trainers.engine.models.base_models import attach_lora, load_model, load_tokenizer
from evert.trainers.engine.models.shared import SharedBases
from evert.trainers.engine.sampling import prefill, stem
from evert.trainers.engine.sampling.drawing import stream_key, uniforms
from evert.trainers.engine.sampling.frozen import FrozenGeneric, FrozenLean, freeze
from evert.trainers.engine.sampling.prefix_cache import PrefixCache
from evert.trainers.engine.sampling.sampler import ModelSampler
from evert.trainers.engine.sampling.scheduler import Scheduler

CPU = torch.device("cpu")
VOCABULARY = 97
SEED = 11
ENDS = frozenset({3, 4, 5, 6})
"""End tokens of the models."""

SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512,
}  # fmt: skip
ROPE = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
LEAN: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3 untied": ("Qwen3ForCausalLM", {**SIZES, "tie_word_embeddings": False}),
    "qwen2 with biases": ("Qwen2ForCausalLM", {**SIZES, "tie_word_embeddings": False}),
    "llama": ("LlamaForCausalLM", {**SIZES, "num_key_value_heads": 4}),
    "llama with all biases": (
        "LlamaForCausalLM", {**SIZES, "attention_bias": True, "mlp_bias": True}
    ),
    "llama with llama3 rope": ("LlamaForCausalLM", {**SIZES, "rope_parameters": ROPE}),
}  # fmt: skip
GENERIC: dict[str, tuple[str, dict[str, Any]]] = {
    "learned positions": (
        "GPT2LMHeadModel", {"n_positions": 512, "n_embd": 32, "n_layer": 2, "n_head": 2},
    ),
    "positions from the mask": (
        "OPTForCausalLM",
        {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "max_position_embeddings": 512, "word_embed_proj_dim": 32},
    ),
    "slopes instead of positions": (
        "BloomForCausalLM", {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    ),
    "a sliding window": ("MistralForCausalLM", {**SIZES, "sliding_window": 12}),
    "windows and capped logits": ("Gemma2ForCausalLM", {**SIZES, "sliding_window": 12}),
    "experts": ("MixtralForCausalLM", {**SIZES, "num_local_experts": 4}),
}  # fmt: skip
ADAPTERS: list[dict[str, Any]] = [
    {"rank": 4}, {"rank": 9, "train_mlp": False}, {"rank": 2, "train_attn": False},
]  # fmt: skip


def make_model(name: str) -> Any:
    kind, options = {**LEAN, **GENERIC}[name]
    made: Any = getattr(transformers, kind)
    torch.manual_seed(1)
    return shaken(made(made.config_class(vocab_size=VOCABULARY, **options)))


def adapters_of(base: Callable[[], Any], kinds: Sequence[dict[str, Any]] = ADAPTERS) -> list[Any]:
    """Return several random adapters of a base model, followed by the base model itself."""
    shared = SharedBases()
    adapted = [attach_lora(shared.tree("m", base), seed=i, **kind) for i, kind in enumerate(kinds)]
    for number, model in enumerate(adapted):
        torch.manual_seed(number)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.3)
    return [*adapted, shared.tree("m", base)]


def neo() -> Any:
    """Return a GPT-Neo. It has learned positions like GPT-2, but its layers support adapters."""
    made: Any = transformers.GPTNeoForCausalLM
    torch.manual_seed(1)
    config = made.config_class(
        vocab_size=VOCABULARY, max_position_embeddings=512, hidden_size=32, num_layers=2,
        num_heads=2, attention_types=[[["global"], 2]],
    )  # fmt: skip
    return made(config).eval()


class World:
    """Models that share a scheduler, and transformers' log-probabilities for their rows."""

    def __init__(self, name: str, tiny_model: str) -> None:
        self.kind: Any = freeze
        self.tokenizer: Any = load_tokenizer(tiny_model)

        def tiny() -> Any:
            return load_model(tiny_model, CPU, torch.float32)

        if name == "adapters of one base":
            self.models = adapters_of(tiny)
        elif name == "adapters beside learned positions":
            self.models = adapters_of(neo, ADAPTERS[:1])[:1]
        elif name.startswith("qwen3 by"):
            self.kind = FrozenLean if "fused" in name else FrozenGeneric
            self.models = [tiny()]
        else:
            self.models = [make_model(name)]
            assert isinstance(freeze(self.models[0]), FrozenLean) is (name in LEAN)
        self._known: dict[tuple[int, bytes], Tensor] = {}

    @contextmanager
    def samplers(self, room: int, chunk: int, *, stems: bool) -> Iterator[list[ModelSampler]]:
        """Yield a sampler for each model. Its prefix cache has size ``room``. A pass has at most
        ``chunk`` tokens. With ``stems``, even short common prefixes are stored only once.
        """
        scheduler, made = Scheduler(), list[ModelSampler]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(prefill._CHUNK_TOKENS, "cpu", chunk)
            if stems:
                patch.setattr(stem, "_LEAST_SAVED", 100)
                patch.setattr(stem, "_LEAST_LENGTH", 1)
            for model in self.models:
                frozen = self.kind(model)
                frozen.prefixes = PrefixCache(room)
                options: dict[str, Any] = {"end_tokens": ENDS, "context_length": 512, "seed": SEED}
                made.append(ModelSampler(frozen, self.tokenizer, scheduler=scheduler, **options))
            yield made
            scheduler.close()

    def logprobs(self, number: int, row: Sequence[int]) -> Tensor:
        """Return [T - 1, V]: the distribution of each token but the first, computed in one pass."""
        key = number, np.array(row).tobytes()
        if key not in self._known:
            with torch.inference_mode():
                logits = self.models[number](torch.tensor([list(row)])).logits[0, :-1]
                self._known[key] = torch.log_softmax(logits.float(), -1)
        return self._known[key]

    def scores(self, number: int, row: Sequence[int]) -> list[float]:
        targets = torch.tensor(row[1:], dtype=torch.long)[:, None]
        return self.logprobs(number, row).gather(1, targets)[:, 0].tolist()

    def check(
        self, number: int, prompt: list[int], params: types.SamplingParams, key: int, reply: Any
    ) -> None:
        """Assert that a reply, up to its stop, was drawn from transformers' distribution."""
        whole, start = prompt + reply.tokens, len(prompt) - 1
        assert reply.logprobs == pytest.approx(self.scores(number, whole)[start:], abs=2e-4)
        rows = self.logprobs(number, whole)[start:]
        for step, (token, row) in enumerate(zip(reply.tokens, rows, strict=True)):
            assert is_drawn(token, row, params, key, step), f"token {step} of {reply.tokens}"
        stopped = [
            self._stops(params.stop, reply.tokens[: n + 1]) for n in range(len(reply.tokens))
        ]
        assert not any(stopped[:-1])
        assert reply.stop_reason == ("stop" if stopped[-1] else "length")
        assert stopped[-1] or len(reply.tokens) == params.max_tokens

    def _stops(self, stop: Any, tokens: list[int]) -> bool:
        if isinstance(stop, list) and all(isinstance(token, int) for token in stop):
            return tokens[-1] in stop
        text = self.tokenizer.decode(tokens)
        return tokens[-1] in ENDS or any(word in text for word in stop or [])


def key_of(prompt: Sequence[int], params: types.SamplingParams, times: int, index: int) -> int:
    """Return the random stream of a sample, given how often its prompt has already been sampled."""
    content = np.array(prompt, np.int32).tobytes()
    if params.seed is not None:
        return stream_key(content, params.seed, index)
    return stream_key(content, SEED, times, index)


def is_drawn(token: int, row: Tensor, params: types.SamplingParams, key: int, step: int) -> bool:
    """Return whether the stream's random number draws this token, allowing for rounding."""
    if params.temperature == 0:
        return float(row.max() - row[token]) < 1e-3
    best = row.sort(descending=True).values
    if params.top_k > 0 and best[params.top_k - 1] - best[params.top_k] < 1e-3:
        return True  # rounding decides which of the two tokens is kept
    [number] = uniforms(np.array([key], np.uint64), np.array([step], np.uint64))
    # Rounding also decides whether top_p includes the token at the cutoff.
    edges = (0.0, 1e-4, -1e-4) if params.top_p < 1 else (0.0,)
    for edge in edges:
        shaped: Any = TemperatureLogitsWarper(params.temperature)(None, row[None])
        if params.top_k > 0:
            shaped = TopKLogitsWarper(params.top_k)(None, shaped)
        if params.top_p < 1:
            shaped = TopPLogitsWarper(params.top_p + edge)(None, shaped)
        ends = [0.0, *torch.softmax(shaped[0].double(), -1).cumsum(-1).tolist()]
        if ends[token + 1] > ends[token] and ends[token] - 1e-3 <= number <= ends[token + 1] + 1e-3:
            return True
    return False
