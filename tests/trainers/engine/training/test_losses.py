"""Losses with their default settings equal their closed forms, token by token in plain Python.

That they add up over data and read their settings, ``test_trainer.py`` has.
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


SAMPLED_PAIRS = [(p, q) for p, q, mask in zip(LOGPROBS, SAMPLED, MASK, strict=True) if mask]
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


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_the_sum_of_its_formula_and_its_gradient_the_derivative(name: str) -> None:
    rows = [*zip(LOGPROBS, SAMPLED, ADVANTAGES, WEIGHTS, strict=True)]
    logprobs = torch.tensor(LOGPROBS, requires_grad=True)
    loss = get_loss(name).formula(logprobs, _inputs(name), resolve_settings(name, None))
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == pytest.approx(sum(VALUES[name](*row) for row in rows), rel=1e-5)
    assert logprobs.grad is not None
    expected = [GRADIENTS[name](*row) for row in rows]
    assert logprobs.grad.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-7)


# (log p of each token at log q = 0, advantages, settings and thresholds a token, loss, gradient)
CLIPS: list[tuple[list[float], list[float], dict[str, float], dict[str, Tensor], float, bool]] = [
    ([2.0, 0.5], [1.0, -1.0], {}, {}, -1.2 + 0.8, False),
    ([1.1, 0.9], [1.0, -1.0], {}, {}, -1.1 + 0.9, True),
    ([3.0], [1.0], {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0}, {}, -2.0, False),
    ([0.2], [-1.0], {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0}, {}, 0.5, False),
    ([3.0, 3.0], [1.0, 1.0], {}, {"clip_high_threshold": torch.tensor([1.5, 2.5])}, -4.0, False),
    ([0.1, 0.1], [-1.0, -1.0], {}, {"clip_low_threshold": torch.tensor([0.5, 0.25])}, 0.75, False),
]


def test_thresholds_bound_the_ratio_itself_and_no_gradient_passes_where_they_bind() -> None:
    for ratios, advantages, config, by_token, loss, flows in CLIPS:
        logprobs = torch.tensor(ratios).log().requires_grad_(True)
        inputs = {"logprobs": torch.zeros(len(ratios)), "advantages": torch.tensor(advantages)}
        settings = resolve_settings("ppo", config)
        found = get_loss("ppo").formula(logprobs, inputs | by_token, settings)
        found.backward()  # type: ignore[no-untyped-call]
        assert float(found.detach()) == pytest.approx(loss), ratios
        assert logprobs.grad is not None
        assert [bool(slope) for slope in logprobs.grad] == [flows] * len(ratios), ratios


def test_the_ratio_of_a_sequence_of_which_nothing_was_sampled_is_1() -> None:
    inputs = {**_inputs("gspo"), "sequence_ratio_mask": torch.zeros(len(MASK))}
    loss = get_loss("gspo").formula(torch.tensor(LOGPROBS), inputs, resolve_settings("gspo", None))
    assert float(loss) == pytest.approx(-sum(ADVANTAGES))


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


def test_what_no_loss_reads_is_refused_by_name_and_what_one_may_read_is_accepted() -> None:
    for attempt, text in REFUSED:
        with pytest.raises(LossInputError, match=text):
            attempt()
    for more in ("clip_low_threshold", "weights"):  # weights: as Tinker's pages have it
        check_inputs("ppo", dict.fromkeys([*TARGETS, more]), "Datum 3")
    assert resolve_settings("dro", {"beta": 2}) == {"beta": 2.0}
