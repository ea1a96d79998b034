"""The engine on a GPU, mostly tested without one (see ``standin.py``).

The engine runs under the rules of CUDA or MPS with its settings for that device, and its results
must match those of a CPU. On a machine with a GPU, the real GPU is compared with the CPU.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
import torch
import transformers
from benchmarks import gpu
from tests.kit import Shown
from tests.nightly import each
from tests.trainers.engine.standin import CUDA, MPS, MPS_SUM, Wait, stand_in
from tests.trainers.kit import make_tokenizer, sampler_of, shaken, snapshot, trainer_of
from tinker import types

from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.engine.models.products import linear
from evert.trainers.engine.training.losses import LOSSES, get_loss
from evert.trainers.system.command import seeded

HAS_GPU = torch.cuda.is_available()
HAS = {"cuda": HAS_GPU, "mps": torch.backends.mps.is_available()}
standin_only = pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")

HOST = torch.arange(4.0)
WEIGHT = torch.ones(4, 4)

REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "a sum with a vector of the host": lambda x: x + HOST,
    "a product with a matrix of the host": lambda x: WEIGHT @ x,
    "a number of the host among rows": lambda x: torch.stack([x.sum(), HOST.sum()]),
    "a look-up by ids of the host": lambda x: torch.nn.functional.embedding(
        torch.tensor([1]), x[:, None]
    ),
    "picking of the host's numbers by ids on the device": lambda x: HOST[x.long()],
    "NumPy": lambda x: np.asarray(x),
    "a product in another type of float32 numbers": lambda x: torch.mm(
        x[None], x[:, None], out_dtype=torch.float32
    ),
}

ALLOWED: dict[str, tuple[Callable[[torch.Tensor], Any], list[str]]] = {
    "arithmetic": (lambda x: (x + 1).cumsum(0).view(2, 2) @ x.view(2, 2), []),
    "a number of the host": (lambda x: x * HOST[1], []),
    "ids of the host": (lambda x: x[torch.tensor([1, 2])], ["index from the host"]),
    "a copy that nobody waits for": (lambda x: HOST.to(x.device, non_blocking=True), []),
    "a copy to the device": (lambda x: x + HOST.to(x.device), ["copy to the device"]),
    "a copy to the host": (lambda x: x.cpu().numpy(), ["copy to the host"]),
    "a list": (lambda x: x.tolist(), ["tolist"]),
    "a number": (lambda x: float(x.sum()), ["_local_scalar_dense"]),
    "a condition": (lambda x: x[x > 1], ["boolean index"]),
}


REFUSED_BY_MPS: dict[str, Callable[[torch.Tensor], Any]] = {
    "float64": lambda x: x.double(),
    "float64 from the host": lambda x: HOST.double().to(x.device),
    "a sum in float64": lambda x: x.cumsum(0, dtype=torch.float64),
    "complex128": lambda x: torch.complex(HOST.double(), HOST.double()).to(x.device),
    "a product in another type": lambda x: torch.mm(
        x.view(2, 2).bfloat16(), x.view(2, 2).bfloat16(), out_dtype=torch.float32
    ),
    "PyTorch's attention": lambda x: torch.nn.functional.scaled_dot_product_attention(
        x.view(1, 2, 2), x.view(1, 2, 2), x.view(1, 2, 2)
    ),
    "a sum of more products": lambda x: x.new_ones(16, MPS_SUM + 1) @ x.new_ones(MPS_SUM + 1, 16),
}


def error_of(call: Callable[[torch.Tensor], Any], device: torch.device = CUDA) -> str:
    try:
        call(HOST.to(device))
    except (RuntimeError, TypeError, AssertionError) as error:
        return str(error)
    return ""


MODES = pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])


@standin_only
@MODES
@pytest.mark.parametrize("case", REFUSED)
def test_the_stand_in_refuses_whatever_cuda_refuses(case: str, mode: Callable[[], Any]) -> None:
    with stand_in(), mode():
        error = error_of(REFUSED[case])
    assert any(word in error for word in ("cpu", "numpy", "CUDA's"))


@standin_only
@MODES
@pytest.mark.parametrize("case", ALLOWED)
def test_the_stand_in_counts_when_the_host_waits(case: str, mode: Callable[[], Any]) -> None:
    call, expected = ALLOWED[case]
    with stand_in() as device, mode():
        x = HOST.to(CUDA)
        device.waits.clear()
        y = call(x)
    assert [wait.why for wait in device.waits] == expected
    assert np.allclose(y.numbers if hasattr(y, "numbers") else y, call(HOST))


@standin_only
@MODES
@pytest.mark.parametrize("case", REFUSED_BY_MPS)
def test_the_stand_in_refuses_whatever_mps_refuses_or_computes_wrongly(
    case: str, mode: Any
) -> None:
    with stand_in(MPS), mode():
        error = error_of(REFUSED_BY_MPS[case], MPS)
    assert any(word in error for word in ("MPS", "CUDA's"))


@standin_only
@MODES
def test_non_blocking_copies_from_mps_do_not_arrive(mode: Callable[[], Any]) -> None:
    with stand_in(MPS), mode():
        x = HOST.to(MPS)
        assert torch.equal(x.cpu(), HOST)
        assert not x.to("cpu", non_blocking=True).any()  # the copy has not arrived


@standin_only
def test_wide_products_and_their_gradients_are_exact_on_mps() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(20, 16), torch.randn(MPS_SUM + 9, 16), torch.randn(MPS_SUM + 9)

    def gradients(device: torch.device) -> list[torch.Tensor]:
        inputs = [tensor.to(device).requires_grad_() for tensor in (x, weight, bias)]
        y = linear(*inputs)
        return [tensor.cpu() for tensor in (y, *torch.autograd.grad(y.square().sum(), inputs))]

    expected = gradients(torch.device("cpu"))
    with stand_in(MPS):
        for ours, theirs in zip(gradients(MPS), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


@standin_only
def test_a_seeded_block_restores_the_random_state_of_mps() -> None:
    with stand_in(MPS):
        torch.mps.manual_seed(5)
        before = torch.mps.get_rng_state()
        with seeded(1):
            assert not torch.equal(torch.mps.get_rng_state(), before)
        assert torch.equal(torch.mps.get_rng_state(), before)


DRAWN = np.random.default_rng(0)


def tokens(count: int) -> list[int]:
    return [int(token) for token in DRAWN.integers(0, 97, count)]


BEGINNING, LONG = tokens(40), tokens(200)
ROWS = [[*(BEGINNING if i % 2 else []), *tokens(6 + i)] for i in range(4)]
NOISE = [DRAWN.normal(size=(2, 64)).astype(np.float32) for _ in ROWS]
STEP = types.AdamParams(learning_rate=1e-3, grad_clip_norm=1.0)
TRACED = "recorded-1"


@dataclass(frozen=True)
class Setup:
    """A model, and the engine's settings for it.

    Attributes:
        family: The architecture in transformers.
        whole: Whether all weights are trained, as opposed to an adapter.
        dtype: The engine's setting, or None for the default (bfloat16 for adapters on CUDA).
        device: The device that is compared with the CPU.
    """

    family: str
    whole: bool
    dtype: str | None
    device: torch.device = CUDA

    @property
    def on_cpu(self) -> str:
        """The dtype to set on the CPU so that it matches the device's default."""
        is_exact = self.whole or self.device == MPS
        return self.dtype or ("float32" if is_exact else "bfloat16")

    @property
    def tolerance(self) -> float:
        """Tolerance of log-probabilities. bfloat16 has 8 bits, and layers round differently."""
        return 1e-4 if self.on_cpu == "float32" else 0.1


SETUPS = {
    "an adapter, by default": Setup("Qwen3", whole=False, dtype=None),
    "all weights": Setup("Qwen3", whole=True, dtype=None),
    "an adapter of another family": Setup("Mistral", whole=False, dtype=None),
    "an adapter in float32": Setup("Qwen3", whole=False, dtype="float32"),
    "an adapter on MPS": Setup("Qwen3", whole=False, dtype=None, device=MPS),
    "all weights on MPS": Setup("Qwen3", whole=True, dtype=None, device=MPS),
    "an adapter of another family on MPS": Setup("Mistral", whole=False, dtype=None, device=MPS),
    "an adapter in bfloat16 on MPS": Setup("Qwen3", whole=False, dtype="bfloat16", device=MPS),
}


@dataclass
class Scene:
    """A running engine, and the results of earlier stages.

    Attributes:
        folder: The base model's folder.
        exact: Whether the other device draws the same tokens.
    """

    folder: str
    exact: bool

    def __post_init__(self) -> None:
        self.service: Any = tinker.ServiceClient()
        self.training = trainer_of(self.folder, rank=4)
        self.sampler = snapshot(self.training)

    def replies(self, requests: Sequence[tuple[Any, list[int], types.SamplingParams]]) -> list[Any]:
        """Sample replies to the prompts of several clients concurrently.

        Returns:
            The differences between the sampled log-probabilities and the log-probabilities from
            scoring. If the other device must draw the same tokens, also the sampled tokens and
            log-probabilities.
        """
        futures = [client.sample(given(prompt), 2, params) for client, prompt, params in requests]
        scored = [
            (reply, len(prompt), client.compute_logprobs(given([*prompt, *reply.tokens])))
            for (client, prompt, _), future in zip(requests, futures, strict=True)
            for reply in future.result().sequences
        ]
        numbers: list[Any] = []
        for reply, start, scores in scored:
            numbers.append(np.subtract(reply.logprobs, scores.result()[start:]))
            numbers += [reply.tokens, reply.logprobs] if self.exact else []
        return numbers


def given(row: Sequence[int]) -> types.ModelInput:
    return types.ModelInput.from_ints(list(row))


def how(**options: Any) -> types.SamplingParams:
    return types.SamplingParams(**{"max_tokens": 5, "stop": [], "seed": 3, **options})


def datum(number: int, loss: str) -> types.Datum:
    """Return a datum for a loss from a row of ``ROWS``, with all tokens marked as sampled."""
    row, length = ROWS[number], len(ROWS[number]) - 1
    noise = NOISE[number][:, :length]
    tensors = {"logprobs": noise[0] - 4, "advantages": noise[1], "weights": np.ones_like(noise[0])}
    tensors |= {"sequence_ratio_mask": np.ones_like(noise[0])}
    inputs = {name: torch.from_numpy(tensors[name]) for name in get_loss(loss).required}
    made = types.Datum(
        model_input=given(row[:-1]),
        loss_fn_inputs={"target_tokens": torch.tensor(row[1:]), **inputs},  # type: ignore[dict-item]
    )
    span: Any = types.SampledProvenanceSpan
    spans = [span(sequence_id=TRACED, length=length)]
    return made.with_provenance(model_input=spans, loss_fn_inputs=spans)


def logprobs_of(output: Any) -> list[Any]:
    return [row["logprobs"].to_numpy() for row in output.loss_fn_outputs]


def train(training: Any, loss: str = "cross_entropy") -> list[Any]:
    """Take a step; return the log-probabilities before the step and the norm of the gradient."""
    data = [datum(number, loss) for number in range(len(ROWS))]
    before = logprobs_of(training.forward_backward(data, loss).result())
    return [*before, training.optim_step(STEP).result().metrics["optim/grad_norm"] / 100]


def train_by_each_loss(scene: Scene) -> list[Any]:
    losses = [*LOSSES] if scene.exact else ["cross_entropy", "gspo"]
    return [number for loss in losses for number in train(scene.training, loss)]


def train_by_a_loss_of_ones_own(scene: Scene) -> list[Any]:
    def loss(data: Any, logprobs: list[torch.Tensor]) -> tuple[Any, dict[str, float]]:
        total = torch.stack([row.square().sum() for row in logprobs]).sum()
        return total, {"own": float(total.detach())}

    data = [datum(number, "cross_entropy") for number in range(3)]
    return logprobs_of(scene.training.forward_backward_custom(data, loss).result())


def sample(scene: Scene) -> list[Any]:
    scene.sampler = snapshot(scene.training)
    shapes = (how(), how(temperature=0.5, top_k=5, top_p=0.9), how(temperature=0), how(stop=[1, 2]))
    return scene.replies([(scene.sampler, ROWS[0], shape) for shape in shapes])


def share_a_beginning(scene: Scene) -> list[Any]:
    rows = [[*LONG, number, 3] for number in range(6)]
    rows += [[*ROWS[1][: 40 + number], number] for number in range(3)]
    return scene.replies([(scene.sampler, row, how(max_tokens=2)) for row in rows])


def sample_several_adapters(scene: Scene) -> list[Any]:
    train(scene.training)
    others = snapshot(scene.training), sampler_of(scene.folder)
    clients = [scene.sampler, *others] * 2
    return scene.replies([(client, ROWS[3], how(max_tokens=4)) for client in clients])


def score(scene: Scene) -> list[Any]:
    futures = [scene.sampler.compute_logprobs(given(row)) for row in ROWS]
    last = scene.sampler.compute_logprobs(given(ROWS[1]), prompt_logprobs_last_n=4)
    targets = types.TensorData.from_torch(torch.full((len(ROWS[2]) - 1, 2), 5))
    response = scene.sampler.sample(
        given(ROWS[2]), 1, how(max_tokens=3),
        include_prompt_logprobs=True, topk_prompt_logprobs=3, target_prompt_logprobs=targets,
    ).result()  # fmt: skip
    scores = [future.result()[1:] for future in futures] + [last.result()[-4:]]
    return [
        *scores,
        response.topk_prompt_logprobs_np.logprobs[1:],
        response.target_prompt_logprobs.to_numpy(),
    ]


def go_on_from_a_checkpoint(scene: Scene) -> list[Any]:
    saved = scene.training.save_state("state").result().path
    resume = scene.service.create_training_client_from_state_with_optimizer
    twin = resume(saved).result()
    went_on, resumed = train(scene.training), train(twin)
    assert all(map(np.allclose, went_on, resumed))
    path = scene.training.save_weights_for_sampler("weights").result().path
    loaded = scene.service.create_sampling_client(model_path=path)
    return [*resumed, *train(twin), loaded.compute_logprobs(given(ROWS[3])).result()[1:]]


STAGES = (
    train_by_each_loss,
    train_by_a_loss_of_ones_own,
    sample,
    share_a_beginning,
    sample_several_adapters,
    score,
    go_on_from_a_checkpoint,
)


def play(scene: Scene) -> dict[str, list[Any]]:
    return {stage.__name__: stage(scene) for stage in STAGES}


def make_model(family: str, folder: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    config: Any = getattr(transformers, f"{family}Config")
    made: Any = getattr(transformers, f"{family}ForCausalLM")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    torch.manual_seed(0)
    model = made(config(vocab_size=len(tokenizer), tie_word_embeddings=False, **sizes, **heads))
    shaken(model).save_pretrained(folder)


@pytest.mark.parametrize("name", each([*SETUPS], by_day=[*[*SETUPS][:2], "an adapter on MPS"]))
def test_a_gpu_computes_the_same_as_the_cpu(name: str, tmp_path: Path) -> None:
    setup, folder = SETUPS[name], tmp_path / "model"
    make_model(setup.family, folder)
    exact = setup.on_cpu == "float32"
    on_cpu: dict[str, Any] = {"device": "cpu", "dtype": setup.on_cpu}
    with embedded_engine(tmp_path / "cpu", full_parameter=setup.whole, **on_cpu):
        expected = play(Scene(str(folder), exact))
    on_gpu: dict[str, Any] = {"device": str(setup.device), "dtype": setup.dtype}
    gpu: Any = nullcontext() if HAS[setup.device.type] else stand_in(setup.device)
    with gpu, embedded_engine(tmp_path / "gpu", full_parameter=setup.whole, **on_gpu) as engine:
        results = play(Scene(str(folder), exact))
    assert engine.device == setup.device
    if setup.device == CUDA:
        assert not torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]

    for stage, numbers in expected.items():
        for ours, theirs in zip(results[stage], numbers, strict=True):
            assert ours == pytest.approx(theirs, abs=setup.tolerance), stage


@standin_only
def test_the_host_waits_once_per_step_for_all_rows(tiny_model: str, tmp_path: Path) -> None:
    shape = how(temperature=0.7, top_k=9)
    with stand_in() as device, embedded_engine(tmp_path, device=str(CUDA)):
        client = sampler_of(tiny_model)

        def waits(rows: int, length: int) -> Counter[Wait]:
            longer = shape.model_copy(update={"max_tokens": length})
            return device.waited(lambda: client.sample(given(ROWS[0]), rows, longer).result())

        waits(2, 2)  # From now on, the prompt is cached.
        for rows in (2, 16):
            steps = 4
            more = waits(rows, 3 + steps) - waits(rows, 3)
            assert sum(more.values()) <= steps, more  # one wait for both tokens and log-probs


@standin_only
def test_a_gpu_does_not_run_the_last_token_of_a_reply() -> None:
    with stand_in():
        sampler = gpu.sampler(gpu.make_base("small", torch.bfloat16, CUDA))
        for row, length in ((LONG, 1), (BEGINNING, 4)):
            passes = sampler.stats.forward_passes
            sampler.sample(row, 3, gpu.how(length)).result()
            assert sampler.stats.forward_passes - passes == length
        sampler.scheduler.close()


@standin_only
@pytest.mark.nightly
def test_the_gpu_benchmark_names_the_stand_in(tmp_path: Path, capsys: Shown) -> None:
    threads = torch.get_num_threads()
    try:
        assert gpu.main(["--quick", f"--out={tmp_path}/gpu.json"]) == 0
    finally:
        torch.set_num_threads(threads)
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert "a stand-in on the CPU" in report["machine"]["device"]
    rows = {row["what"]: row for row in report["rows"]}
    assert rows["small: the host waits"]["engine"] == "1.0 times per token"
    assert rows["a run of the identity game"]["engine"] == "skipped: no GPU"
    assert "| gradient of gspo, bfloat16 |" in (tmp_path / "gpu.md").read_text()
