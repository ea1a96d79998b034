"""Losses are sums over tokens, equal to their closed forms and differentiable as written.

1. Each loss equals its formula, computed here token by token in plain Python.
2. Each gradient equals the derivative worked out by hand.
3. Settings come from ``loss_fn_config`` or token by token from the datum; wrong ones are refused.
"""

import math
import pickle
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
def test_a_loss_is_the_sum_of_its_formula_over_tokens(name: str) -> None:
    assert float(_compute(name, torch.tensor(LOGPROBS))) == pytest.approx(
        sum(_by_token(VALUES[name])), rel=1e-5
    )


@pytest.mark.parametrize("name", LOSSES)
def test_a_gradient_is_the_derivative_worked_out_by_hand(name: str) -> None:
    logprobs = torch.tensor(LOGPROBS, requires_grad=True)
    _compute(name, logprobs).backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx(_by_token(GRADIENTS[name]), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", LOSSES)
def test_twice_the_datums_give_twice_the_loss(name: str) -> None:
    once = _compute(name, torch.tensor(LOGPROBS))
    twice = get_loss(name).total(
        torch.tensor(LOGPROBS).repeat(2), [_inputs(name)] * 2, resolve_settings(name, None)
    )
    assert float(twice) == pytest.approx(2 * float(once))


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


def test_the_pull_of_stable_reinforce_comes_from_the_config() -> None:
    logprobs = torch.tensor(LOGPROBS)
    weak, strong = (_compute("stable_reinforce", logprobs, kl_coeff=k) for k in (0.0, 1.0))
    squares = sum((p - q) ** 2 for p, q in SAMPLED_PAIRS)
    assert float(strong - weak) == pytest.approx(0.5 * squares, rel=1e-5)


def test_on_policy_the_importance_sampling_gradient_is_the_advantage() -> None:
    logprobs = torch.tensor(SAMPLED, requires_grad=True)
    _compute("importance_sampling", logprobs).backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-a for a in ADVANTAGES])


def test_ppo_passes_no_gradient_where_the_clip_binds() -> None:
    logprobs = torch.tensor([math.log(2.0), math.log(0.5)], requires_grad=True)
    inputs = {"logprobs": torch.zeros(2), "advantages": torch.tensor([1.0, -1.0])}
    get_loss("ppo").formula(logprobs, inputs, resolve_settings("ppo", None)).backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0, 0.0]


def test_thresholds_bound_the_ratio_itself() -> None:
    logprobs = torch.tensor([math.log(3.0)])
    inputs = {"logprobs": torch.zeros(1), "advantages": torch.ones(1)}
    settings = resolve_settings("ppo", {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0})
    assert float(get_loss("ppo").formula(logprobs, inputs, settings)) == pytest.approx(-2.0)


def test_thresholds_may_be_given_token_by_token() -> None:
    logprobs = torch.full((2,), math.log(3.0))
    inputs = {
        "logprobs": torch.zeros(2),
        "advantages": torch.ones(2),
        "clip_high_threshold": torch.tensor([1.5, 2.5]),
    }
    loss = get_loss("ppo").formula(logprobs, inputs, resolve_settings("ppo", None))
    assert float(loss) == pytest.approx(-4.0)


def test_the_strength_of_dro_comes_from_the_config() -> None:
    logprobs = torch.tensor(LOGPROBS)
    weak, strong = (_compute("dro", logprobs, beta=beta) for beta in (0.0, 1.0))
    squares = sum((p - q) ** 2 for p, q in zip(LOGPROBS, SAMPLED, strict=True))
    assert float(strong - weak) == pytest.approx(0.5 * squares, rel=1e-5)


def test_cross_entropy_equals_torch_on_many_targets_a_token() -> None:
    logprobs = torch.log_softmax(torch.randn(4, 3), -1)
    weights = torch.rand(4, 3)
    loss = get_loss("cross_entropy").formula(logprobs, {"weights": weights}, {})
    assert float(loss) == pytest.approx(float(-(weights * logprobs).sum()))


def test_an_unknown_loss_is_refused_with_the_ones_there_are() -> None:
    known = "cross_entropy, importance_samp.*async_config.loss_fn"
    with pytest.raises(LossInputError, match=f"'mse' is not one.*{known}"):
        get_loss("mse")


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(LossInputError, match="key 'eps'; expected only .*clip_high_threshold"):
        resolve_settings("ppo", {"eps": 0.2})
    with pytest.raises(LossInputError, match="no keys at all"):
        resolve_settings("cross_entropy", {"eps": 0.2})


@pytest.mark.parametrize("value", ["0.2", True, None])
def test_a_setting_that_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(LossInputError, match="expected a number"):
        resolve_settings("dro", {"beta": value})


def test_a_missing_or_an_unread_tensor_is_refused_by_name() -> None:
    with pytest.raises(LossInputError, match=r"Datum 3.*missing \['advantages'\].*\['mask'\]"):
        check_inputs("ppo", {"target_tokens": 0, "logprobs": 0, "mask": 0}, "Datum 3")
    known = ["target_tokens", "logprobs", "advantages"]
    check_inputs("ppo", dict.fromkeys(known), "Datum 3")
    check_inputs("ppo", dict.fromkeys([*known, "weights"]), "Datum 3")  # as Tinker's pages have it


def test_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(LossInputError("text")))
    assert isinstance(error, ValueError)
    assert str(error) == "text"
