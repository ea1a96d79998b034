"""Losses are sums over tokens, equal to their closed forms and differentiable as written.

1. Each loss equals its formula, computed here token by token in plain Python.
2. Each gradient equals the derivative worked out by hand.
3. Settings come from ``loss_fn_config`` or token by token from the datum; wrong ones are refused.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from evert.trainers.engine.common.errors import LossInputError
from evert.trainers.engine.training.losses import LOSSES, check_inputs, get_loss, resolve_settings

LOGPROBS = [-0.5, -1.0, -2.0, -0.1, -3.0]
SAMPLED = [-0.7, -0.2, -2.0, -1.5, -2.9]
ADVANTAGES = [1.0, -2.0, 0.0, 0.5, -1.5]
WEIGHTS = [1.0, 0.0, 0.5, 2.0, 1.0]
MASK = [0.0, 1.0, 1.0, 0.0, 1.0]
"""Which tokens a sequence's ratio is of, and which were sampled."""

Token = Callable[[float, float, float, float], float]
"""(log p, log q, A, w) -> the token's loss"""


def _clip(x: float, low: float = 0.8, high: float = 1.2) -> float:
    return max(low, min(high, x))


PAIRS = list(zip(LOGPROBS, SAMPLED, strict=True))
SAMPLED_PAIRS = [pair for pair, sampled in zip(PAIRS, MASK, strict=True) if sampled]
SEQUENCE = math.prod(math.exp(p - q) for p, q in SAMPLED_PAIRS) ** (1 / len(SAMPLED_PAIRS))
"""The geometric mean of the ratios of the tokens that MASK marks."""

VALUES: dict[str, Token] = {
    "cross_entropy": lambda p, q, a, w: -w * p,
    "importance_sampling": lambda p, q, a, w: -math.exp(p - q) * a,
    "ppo": lambda p, q, a, w: -min(math.exp(p - q) * a, _clip(math.exp(p - q)) * a),
    "cispo": lambda p, q, a, w: -_clip(math.exp(p - q)) * a * p,
    "dro": lambda p, q, a, w: -(p * a - 0.5 * 0.05 * (p - q) ** 2),
    "gspo": lambda p, q, a, w: -min(SEQUENCE * a, _clip(SEQUENCE) * a),
    "stable_reinforce": lambda p, q, a, w: -p * a if (p, q) in SAMPLED_PAIRS else 0.0,
}


def _ppo_gradient(p: float, q: float, a: float, w: float) -> float:
    ratio = math.exp(p - q)
    return -ratio * a if ratio * a <= _clip(ratio) * a else 0.0


GRADIENTS: dict[str, Token] = {
    "cross_entropy": lambda p, q, a, w: -w,
    "importance_sampling": lambda p, q, a, w: -math.exp(p - q) * a,
    "ppo": _ppo_gradient,
    "cispo": lambda p, q, a, w: -_clip(math.exp(p - q)) * a,
    "dro": lambda p, q, a, w: -(a - 0.05 * (p - q)),
    "gspo": lambda p, q, a, w: -SEQUENCE * a if SEQUENCE * a <= _clip(SEQUENCE) * a else 0.0,
    "stable_reinforce": lambda p, q, a, w: -a if (p, q) in SAMPLED_PAIRS else 0.0,
}


def _inputs(name: str) -> dict[str, Tensor]:
    if name == "cross_entropy":
        return {"weights": torch.tensor(WEIGHTS)}
    inputs = {"logprobs": torch.tensor(SAMPLED), "advantages": torch.tensor(ADVANTAGES)}
    return inputs | {"sequence_ratio_mask": torch.tensor(MASK), "sampled": torch.tensor(MASK)}


def _compute(name: str, logprobs: Tensor, **settings: float) -> Tensor:
    return get_loss(name).formula(logprobs, _inputs(name), resolve_settings(name, settings))


def _by_token(function: Token) -> list[float]:
    rows = zip(LOGPROBS, SAMPLED, ADVANTAGES, WEIGHTS, strict=True)
    return [function(*row) for row in rows]


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_the_sum_of_its_formula_and_its_gradient_the_derivative(name: str) -> None:
    logprobs = torch.tensor(LOGPROBS, requires_grad=True)
    loss = _compute(name, logprobs)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == pytest.approx(sum(_by_token(VALUES[name])), rel=1e-5)
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx(_by_token(GRADIENTS[name]), rel=1e-5, abs=1e-7)
    twice = get_loss(name).total(
        logprobs.detach().repeat(2), [_inputs(name)] * 2, resolve_settings(name, None)
    )
    assert float(twice) == pytest.approx(2 * float(loss.detach()))


def test_a_sequence_s_ratio_is_of_its_own_tokens_in_whatever_batch() -> None:
    """Against the documented formula, written anew in float64 and datum by datum."""
    torch.manual_seed(0)
    data, logprobs, expected = [], [], torch.zeros((), dtype=torch.float64)
    for length in (3, 7, 5):
        ours, theirs, advantages = torch.randn(3, length).double()
        mask = (torch.arange(length) > 0).double()
        p = ours.clone().requires_grad_(True)
        ratio = torch.exp(((p.detach() - theirs) * mask).sum() / mask.sum()) * torch.exp(
            p - p.detach()
        )
        gains = torch.stack([ratio * advantages, ratio.clip(0.5, 1.5) * advantages])
        expected = expected - gains.min(0).values.sum()
        logprobs.append(p)
        inputs = {"logprobs": theirs, "advantages": advantages, "sequence_ratio_mask": mask}
        data.append({key: value.float() for key, value in inputs.items()})
    expected.backward()  # type: ignore[no-untyped-call]
    given = torch.cat([p.detach().float() for p in logprobs]).requires_grad_(True)
    config = {"clip_low_threshold": 0.5, "clip_high_threshold": 1.5}
    loss = get_loss("gspo").total(given, data, resolve_settings("gspo", config))
    loss.backward()  # type: ignore[no-untyped-call]
    assert given.grad is not None
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    gradients = torch.cat([p.grad for p in logprobs if p.grad is not None])
    assert given.grad.tolist() == pytest.approx(gradients.tolist(), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(("name", "setting"), [("dro", "beta"), ("stable_reinforce", "kl_coeff")])
def test_the_pull_towards_the_sampler_comes_from_the_config(name: str, setting: str) -> None:
    logprobs = torch.tensor(LOGPROBS)
    weak, strong = (_compute(name, logprobs, **{setting: pull}) for pull in (0.0, 1.0))
    pairs = PAIRS if name == "dro" else SAMPLED_PAIRS
    assert float(strong - weak) == pytest.approx(
        0.5 * sum((p - q) ** 2 for p, q in pairs), rel=1e-5
    )


def test_on_policy_importance_sampling_is_reinforce() -> None:
    logprobs = torch.tensor(LOGPROBS, requires_grad=True)
    inputs = {**_inputs("ppo"), "logprobs": torch.tensor(LOGPROBS)}
    get_loss("importance_sampling").formula(logprobs, inputs, {}).backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-a for a in ADVANTAGES])


# (log p of each token at log q = 0, advantages, settings and thresholds a token, loss, gradient)
CLIPS: list[tuple[list[float], list[float], dict[str, float], dict[str, Tensor], float, bool]] = [
    ([2.0, 0.5], [1.0, -1.0], {}, {}, -1.2 + 0.8, False),
    ([1.1, 0.9], [1.0, -1.0], {}, {}, -1.1 + 0.9, True),
    ([3.0], [1.0], {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0}, {}, -2.0, False),
    ([0.2], [-1.0], {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0}, {}, 0.5, False),
    ([3.0, 3.0], [1.0, 1.0], {}, {"clip_high_threshold": torch.tensor([1.5, 2.5])}, -4.0, False),
    ([0.1, 0.1], [-1.0, -1.0], {}, {"clip_low_threshold": torch.tensor([0.5, 0.25])}, 0.75, False),
]


@pytest.mark.parametrize(("ratios", "advantages", "config", "by_token", "loss", "flows"), CLIPS)
def test_thresholds_bound_the_ratio_itself_and_no_gradient_passes_where_they_bind(
    ratios: list[float],
    advantages: list[float],
    config: dict[str, float],
    by_token: dict[str, Tensor],
    loss: float,
    flows: bool,
) -> None:
    logprobs = torch.tensor(ratios).log().requires_grad_(True)
    inputs = {"logprobs": torch.zeros(len(ratios)), "advantages": torch.tensor(advantages)}
    found = get_loss("ppo").formula(logprobs, inputs | by_token, resolve_settings("ppo", config))
    found.backward()  # type: ignore[no-untyped-call]
    assert float(found.detach()) == pytest.approx(loss)
    assert logprobs.grad is not None
    assert [bool(slope) for slope in logprobs.grad] == [flows] * len(ratios)


def test_the_ratio_of_a_sequence_of_which_nothing_was_sampled_is_1() -> None:
    inputs = {**_inputs("gspo"), "sequence_ratio_mask": torch.zeros(len(MASK))}
    loss = get_loss("gspo").formula(torch.tensor(LOGPROBS), inputs, resolve_settings("gspo", None))
    assert float(loss) == pytest.approx(-sum(ADVANTAGES))


def test_cross_entropy_equals_torch_on_many_targets_a_token() -> None:
    logprobs = torch.log_softmax(torch.randn(4, 3), -1)
    weights = torch.rand(4, 3)
    loss = get_loss("cross_entropy").formula(logprobs, {"weights": weights}, {})
    assert float(loss) == pytest.approx(float(-(weights * logprobs).sum()))


TARGETS = ["target_tokens", "logprobs", "advantages"]
REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: get_loss("mse"), r"'mse' is not one.*cross_entropy, importance_samp.*async_config"),
    (lambda: resolve_settings("ppo", {"eps": 0.2}), "key 'eps'; expected only .*clip_high_thr"),
    (lambda: resolve_settings("cross_entropy", {"eps": 0.2}), "no keys at all"),
    (lambda: resolve_settings("dro", {"beta": "0.2"}), "expected a number"),
    (lambda: resolve_settings("dro", {"beta": True}), "expected a number"),
    (lambda: resolve_settings("dro", {"beta": None}), "expected a number"),
    (
        lambda: check_inputs("ppo", dict.fromkeys([*TARGETS[:2], "mask"]), "Datum 3"),
        r"Datum 3.*missing \['advantages'\].*\['mask'\].*Pass exactly \['advantages', 'logp",
    ),
]


@pytest.mark.parametrize(("attempt", "text"), REFUSED)
def test_what_no_loss_reads_is_refused_by_name(attempt: Callable[[], object], text: str) -> None:
    with pytest.raises(LossInputError, match=text):
        attempt()


def test_what_a_loss_reads_or_may_read_is_accepted() -> None:
    check_inputs("ppo", dict.fromkeys(TARGETS), "Datum 3")
    check_inputs("ppo", dict.fromkeys([*TARGETS, "clip_low_threshold"]), "Datum 3")
    check_inputs(
        "ppo", dict.fromkeys([*TARGETS, "weights"]), "Datum 3"
    )  # as Tinker's pages have it
    assert resolve_settings("dro", {"beta": 2}) == {"beta": 2.0}
