"""Losses: formulas, clipping and invalid inputs. ``test_trainer.py`` checks their sums."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.trainers.engine.training.test_trainer import DEFAULTS, FORMULAS, OTHERS
from torch import Tensor

from evert.trainers.engine.common.errors import LossInputError
from evert.trainers.engine.training.losses import LOSSES, check_inputs, get_loss, resolve_settings

GIVEN = {
    "logprobs": torch.tensor([-0.7, -0.2, -2.0, -1.5, -2.9]),
    "advantages": torch.tensor([1.0, -2.0, 0.0, 0.5, -1.5]),
    "weights": torch.tensor([1.0, 0.0, 0.5, 2.0, 1.0]),
    "sequence_ratio_mask": torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0]),
    "sampled": torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0]),
}


@pytest.mark.parametrize("is_set", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_its_gradient_match_its_formula(name: str, is_set: bool) -> None:
    ours, theirs = (torch.tensor([-0.5, -1.0, -2.0, -0.1, -3.0]).requires_grad_() for _ in "ab")
    config = OTHERS.get(name) if is_set else None
    loss = get_loss(name).formula(ours, GIVEN, resolve_settings(name, config))
    expected = FORMULAS[name](theirs, GIVEN, DEFAULTS | (config or {}))
    torch.autograd.backward([loss, expected])
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert ours.grad is not None
    assert theirs.grad is not None
    assert ours.grad.tolist() == pytest.approx(theirs.grad.tolist(), rel=1e-5, abs=1e-7)


# (ratio p / q per token, advantages, settings, thresholds per token, loss, any gradient?)
CLIPS: list[tuple[list[float], list[float], dict[str, float], dict[str, Tensor], float, bool]] = [
    ([2.0, 0.5], [1.0, -1.0], {}, {}, -1.2 + 0.8, False),
    ([1.1, 0.9], [1.0, -1.0], {}, {}, -1.1 + 0.9, True),
    ([3.0], [1.0], {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0}, {}, -2.0, False),
    ([0.2], [-1.0], {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0}, {}, 0.5, False),
    ([3.0, 3.0], [1.0, 1.0], {}, {"clip_high_threshold": torch.tensor([1.5, 2.5])}, -4.0, False),
    ([0.1, 0.1], [-1.0, -1.0], {}, {"clip_low_threshold": torch.tensor([0.5, 0.25])}, 0.75, False),
]


@pytest.mark.parametrize(("ratios", "advantages", "config", "by_token", "expected", "flows"), CLIPS)
def test_no_gradient_passes_where_a_threshold_clips_the_ratio(
    ratios: Any, advantages: Any, config: Any, by_token: Any, expected: float, flows: bool
) -> None:
    logprobs = torch.tensor(ratios).log().requires_grad_(True)
    inputs = {"logprobs": torch.zeros(len(ratios)), "advantages": torch.tensor(advantages)}
    loss = get_loss("ppo").formula(logprobs, inputs | by_token, resolve_settings("ppo", config))
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == pytest.approx(expected)
    assert logprobs.grad is not None
    assert [bool(slope) for slope in logprobs.grad] == [flows] * len(ratios)


def test_the_ratio_of_a_sequence_without_sampled_tokens_is_1() -> None:
    inputs = {"logprobs": torch.tensor([-0.7, -2.9]), "advantages": torch.tensor([1.0, 2.0])}
    inputs["sequence_ratio_mask"] = torch.zeros(2)
    settings = resolve_settings("gspo", None)
    loss = get_loss("gspo").formula(torch.tensor([-0.5, -3.0]), inputs, settings)
    assert float(loss) == pytest.approx(-3.0)


def test_without_a_mask_the_ratio_covers_tokens_with_an_advantage_or_logprob() -> None:
    inputs = {
        "logprobs": torch.tensor([0.0, -0.7, 0.0, -2.9]),
        "advantages": torch.tensor([0.0, 1.0, 2.0, 0.0]),
    }
    mask = {"sequence_ratio_mask": torch.tensor([0.0, 1.0, 1.0, 1.0])}
    logprobs, settings = torch.tensor([-4.0, -0.5, -0.1, -3.0]), resolve_settings("gspo", None)
    formula = get_loss("gspo").formula
    assert formula(logprobs, inputs, settings) == formula(logprobs, inputs | mask, settings)


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"cross_entropy"}))
def test_no_loss_with_advantages_trains_on_a_prompt(name: str) -> None:
    zeros = {"logprobs": torch.zeros(3), "advantages": torch.zeros(3), "sampled": torch.zeros(3)}
    logprobs = torch.tensor([-0.5, -3.0, -1.0]).requires_grad_()
    get_loss(name).formula(logprobs, zeros, resolve_settings(name, None)).backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0] * 3


TARGETS = ["target_tokens", "logprobs", "advantages"]
REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: get_loss("mse"), r"loss 'mse'.*cross_entropy, importance_samp.*async_config"),
    (lambda: resolve_settings("ppo", {"eps": 0.2}), "key 'eps'; expected only .*clip_high_thr"),
    (lambda: resolve_settings("cross_entropy", {"eps": 0.2}), "expected only no keys"),
    (lambda: resolve_settings("dro", {"beta": "0.2"}), "expected a number"),
    (lambda: resolve_settings("dro", {"beta": True}), "expected a number"),
    (lambda: resolve_settings("dro", {"beta": None}), "expected a number"),
    (
        lambda: check_inputs("ppo", dict.fromkeys([*TARGETS[:2], "mask"]), "Datum 3"),
        r"Datum 3.*missing \['advantages'\].*\['mask'\].*Pass exactly \['advantages', 'logp",
    ),
]


@pytest.mark.parametrize(("attempt", "text"), REFUSED)
def test_inputs_that_no_loss_uses_are_refused(attempt: Callable[[], object], text: str) -> None:
    with pytest.raises(LossInputError, match=text):
        attempt()


def test_optional_inputs_and_settings_of_a_loss_are_accepted() -> None:
    for more in ("clip_low_threshold", "weights"):  # Tinker's docs pass weights
        check_inputs("ppo", dict.fromkeys([*TARGETS, more]), "Datum 3")
    assert resolve_settings("dro", {"beta": 2}) == {"beta": 2.0}
