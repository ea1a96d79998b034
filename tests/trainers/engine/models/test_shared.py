"""A base model that several adapters share is loaded only once, without affecting results."""

import gc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tinker
import torch
import transformers
from tests.trainers.engine.training.test_trainer import datum as long_datum
from tests.trainers.engine.training.test_trainer import gradients
from tests.trainers.kit import (
    datum,
    loss_of,
    make_tokenizer,
    params,
    prompt,
    sampler_of,
    sequences,
    shaken,
    snapshot,
    train,
    trainer_of,
)  # fmt: skip

from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.common.errors import ModelNotFoundError
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.engine.models.base_models import attach_lora
from evert.trainers.engine.models.lean import LeanModel
from evert.trainers.engine.models.loading import EngineSettings, Loader
from evert.trainers.engine.models.shared import SharedBases
from evert.trainers.engine.sampling.frozen import FrozenGeneric, FrozenLean, freeze
from evert.trainers.engine.training.trainer import Trainer

SIZES: dict[str, Any] = {
    "vocab_size": 262, "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3 tied": ("Qwen3", {**SIZES, "head_dim": 16, "tie_word_embeddings": True}),
    "qwen3 untied": ("Qwen3", {**SIZES, "head_dim": 16, "tie_word_embeddings": False}),
    "qwen2 with biases": ("Qwen2", {**SIZES, "tie_word_embeddings": True}),
    "llama with all biases": ("Llama", {**SIZES, "attention_bias": True, "mlp_bias": True}),
    "gpt-neox": ("GPTNeoX", SIZES),
}


def make(name: str) -> Any:
    family, sizes = FAMILIES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**sizes)
    return shaken(getattr(transformers, f"{family}ForCausalLM")(config), 0.05)


def with_random_adapter(model: Any) -> Any:
    adapted = attach_lora(model, 3, seed=1)
    torch.manual_seed(1)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return adapted


@pytest.fixture(params=["qwen3 tied", "gpt-neox"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    make(request.param).save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture
def adapting(tmp_path: Path) -> Iterator[Engine]:
    """Start an engine that trains adapters, whatever the size of the model."""
    with embedded_engine(tmp_path / "store", device="cpu", full_parameter=False) as engine:
        yield engine


def tensor_bytes() -> int:
    """Return the total size of all live tensors in bytes, counting shared storage once."""
    gc.collect()
    kinds = (torch.Tensor, torch.nn.Parameter)
    tensors = [value for value in gc.get_objects() if type(value) in kinds]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def test_all_users_of_a_base_share_its_memory(adapting: Engine, folder: str) -> None:
    before = tensor_bytes()
    clients = [trainer_of(folder, rank=1) for _ in range(2)]
    samplers: list[Any] = [snapshot(c) for c in clients * 2]
    samplers.append(sampler_of(folder))
    for sampler in samplers:
        assert sequences(sampler)[0].tokens
    base = (Path(folder) / "model.safetensors").stat().st_size
    taken = tensor_bytes() - before
    assert 0.98 * base < taken < 1.6 * base


def test_adapters_train_without_affecting_each_other(adapting: Engine, folder: str) -> None:
    first, second = (trainer_of(folder, rank=4) for _ in "ab")
    train(first, 1)
    still = [snapshot(first), sampler_of(folder)]
    before = [c.compute_logprobs(prompt(5, 6, 7, 8)).result() for c in still]
    untouched = loss_of(second)
    train(first, 2)
    alone = loss_of(first)
    assert alone < untouched - 0.01
    assert loss_of(second) == pytest.approx(untouched, abs=1e-6)
    for step in (0, 0, 1):  # both train concurrently, each in its own thread
        working = [c.forward_backward([datum(seed=step)], "cross_entropy") for c in (first, second)]
        [future.result() for future in working]
        second.optim_step(tinker.AdamParams(learning_rate=1e-2)).result()
    assert loss_of(second) == pytest.approx(alone, abs=1e-5)
    assert [c.compute_logprobs(prompt(5, 6, 7, 8)).result() for c in still] == before
    logprobs = snapshot(first).compute_logprobs(prompt(5, 6, 7, 8)).result()
    assert logprobs != pytest.approx(before[0], abs=1e-3)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_adapter_on_a_shared_base_computes_the_same_as_peft(name: str) -> None:
    data = [long_datum(n, n) for n in (30, 7, 1)]
    tokenizer: Any = None
    shared = with_random_adapter(SharedBases().tree(name, partial(make, name)))
    alone = with_random_adapter(make(name))
    assert isinstance(freeze(shared), FrozenGeneric if name == "gpt-neox" else FrozenLean)
    trainers = Trainer(shared, tokenizer), Trainer(alone, tokenizer)
    outputs = [t.forward_backward(t.read(data, "cross_entropy")) for t in trainers]
    losses = [output.metrics["loss:sum"] for output in outputs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    pairs = list(zip(gradients(shared), gradients(alone), strict=True))
    assert len(pairs) > 4
    assert all(float((a - b).norm()) < 1e-4 * float(b.norm()) for a, b in pairs)


def test_the_layers_that_get_an_adapter_can_be_chosen() -> None:
    model = SharedBases().tree("m", lambda: make("qwen3 tied"))
    [layer, _] = LeanModel(attach_lora(model, 2, seed=0, train_attn=False), copied=False).layers
    assert layer.qkv.delta is None
    assert layer.gate_up.delta is not None
    assert [*layer.gate_up.delta.up.shape] == [1024, 4]


def test_fused_weights_are_views_of_the_models_weights() -> None:
    model = SharedBases().tree("m", lambda: make("qwen2 with biases"))
    qkv = LeanModel(model, copied=False).layers[0].qkv
    attention = model.model.layers[0].self_attn
    assert qkv.weight.data_ptr() == attention.q_proj.weight.data_ptr()
    assert qkv.bias is not None
    assert qkv.bias.data_ptr() == attention.q_proj.bias.data_ptr()
    assert torch.equal(qkv.weight[-64:], attention.v_proj.weight)


def test_a_base_is_freed_with_its_last_user() -> None:
    loads: list[str] = []

    def load() -> Any:
        loads.append("again")
        return make("qwen3 tied")

    bases = SharedBases()
    first = bases.tree("m", load)
    frozen = freeze(first)
    del first
    gc.collect()
    second = bases.tree("m", load)
    assert len(loads) == 1
    del frozen, second
    gc.collect()
    assert bases.tree("m", load) is not None
    assert len(loads) == 2


@pytest.mark.parametrize(("device", "dtype"), [("cuda", torch.bfloat16), ("cpu", torch.float32)])
def test_frozen_weights_on_cuda_are_in_bfloat16(device: str, dtype: Any) -> None:
    loader = Loader(EngineSettings())
    loader.device = torch.device(device)
    assert loader.dtype(full_parameter=False) == dtype
    assert loader.dtype(full_parameter=True) == torch.float32


def test_a_dtype_can_be_chosen(tmp_path: Path, tiny_model: str) -> None:
    with embedded_engine(tmp_path, device="cpu", dtype="bfloat16", full_parameter=False) as engine:
        client = trainer_of(tiny_model)
        kinds = {p.dtype for p in client._run.trainer.model.parameters()}
        assert kinds == {torch.bfloat16, torch.float32}
        train(client)
        sampler = snapshot(client)
        assert sequences(sampler)[0].tokens
        assert engine.models.dtype(full_parameter=True) == torch.bfloat16
    with (
        pytest.raises(ModelNotFoundError, match="dtype is 'int8'; expected one of auto, float"),
        embedded_engine(tmp_path, dtype="int8"),
    ):
        pass


def test_trainer_and_sampler_approximately_agree_in_bfloat16(tmp_path: Path) -> None:
    with embedded_engine(tmp_path, device="cpu", dtype="bfloat16", full_parameter=False):
        client = trainer_of("evert-tiny", rank=4)
        sampler = snapshot(client)
        prompts = [[(7 * i + j) % 500 for j in range(40)] for i in range(32)]
        futures = [sampler.sample(prompt(*tokens), 1, params(max_tokens=30)) for tokens in prompts]
        replies = [future.result().sequences[0] for future in futures]
        apart = []
        for tokens, reply in zip(prompts, replies, strict=True):
            whole = [*tokens, *reply.tokens]
            inputs: Any = {"target_tokens": whole[1:], "weights": [1.0] * (len(whole) - 1)}
            data = [tinker.Datum(model_input=prompt(*whole[:-1]), loss_fn_inputs=inputs)]
            [output] = client.forward(data, "cross_entropy").result().loss_fn_outputs
            logprobs = output["logprobs"].to_torch()[39:]
            apart.append((logprobs - torch.tensor(reply.logprobs)).abs())
    # The mean would be 0.02 if logits or attention scores were rounded to bfloat16.
    assert 0 < float(torch.cat(apart).mean()) < 0.012
