"""The losses of Tinker's ``forward_backward``, as pure functions of per-token tensors.

Every loss takes the learner's log-probabilities of the target tokens and the datum's other
tensors, all of the same shape, and returns one scalar: the **sum** over tokens (never a mean).
With ``p`` the learner, ``q`` the sampler, ``A`` the advantage and ``r = p / q`` token by token:

    cross_entropy         -sum(w log p)
    importance_sampling   -sum(r A)
    ppo                   -sum(min(r A, clip(r, low, high) A))          low 0.8, high 1.2
    cispo                 -sum(stop_gradient(clip(r, low, high)) A log p)   low 0.8, high 1.2
    dro                   -sum(A log p - beta / 2 (log p - log q)^2)    beta 0.05
                          without the second term where A and log q are both 0, as for prompt
                          tokens in data from the Cookbook's loop
    gspo                  as ppo, with one ratio for all tokens of a datum: the geometric mean of r
                          where ``sequence_ratio_mask`` is not 0; each token keeps the gradient of
                          its own log p (GSPO-token, arXiv:2507.18071). Without that mask (the
                          Cookbook's loop sends none): where A or log q is not 0
    stable_reinforce      -sum(A log p - kl_coeff / 2 (log p - log q)^2) over sampled tokens
                          kl_coeff 0

The service's formula for stable_reinforce is not public; ours is REINFORCE. On-policy, all variants
of REINFORCE have the same gradient. Off-policy they may differ, and the engine warns once.

Settings come from ``loss_fn_config``. The thresholds low and high are bounds on the ratio itself,
named ``clip_low_threshold`` and ``clip_high_threshold``; loss inputs of the same names set them
per token. Order here: names, look-up, the check of a datum's inputs, the losses, their table.

The settings of runs import the names, so only functions import torch and tinker.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

if TYPE_CHECKING:
    from torch import Tensor

    from evert.trainers.engine.common.errors import LossInputError

logger = logging.getLogger(__name__)

LossFn = Literal["importance_sampling", "ppo", "cispo", "dro", "gspo", "stable_reinforce"]
"""Losses of advantages."""

LossName = Literal["cross_entropy"] | LossFn
Inputs: TypeAlias = Mapping[str, "Tensor"]
Settings = Mapping[str, float]


@dataclass(frozen=True)
class Loss:
    """A loss: its formula, its required and optional inputs, and its settings."""

    formula: Callable[["Tensor", Inputs, Settings], "Tensor"]  # (logprobs, inputs, settings)
    required: tuple[str, ...]  # Loss inputs that a datum needs besides ``target_tokens``
    settings: Mapping[str, float]  # Keys allowed in ``loss_fn_config``, with their defaults
    by_datum: bool = False  # Whether the formula applies to each datum separately
    from_spans: bool = False  # Whether it reads ``sampled`` (0 or 1, from provenance)

    def total(self, logprobs: "Tensor", data: Sequence[Inputs], settings: Settings) -> "Tensor":
        """Sum the loss of several data; ``logprobs`` is for all targets, datum after datum."""
        import torch

        if self.by_datum:
            parts = torch.split(logprobs, [len(inputs["logprobs"]) for inputs in data])
            pairs = zip(parts, data, strict=True)
            losses = [self.formula(part, inputs, settings) for part, inputs in pairs]
            return torch.stack(losses).sum()
        joined = {key: torch.cat([inputs[key] for inputs in data]) for key in data[0]}
        return self.formula(logprobs, joined, settings)

    @property
    def optional(self) -> tuple[str, ...]:
        """Optional inputs: settings per token, gspo's mask, and ``weights``, which is ignored."""
        mask = ("sequence_ratio_mask",) if self.by_datum else ()
        return ("weights", *mask, *(key for key in self.settings if key.startswith("clip_")))


def _input_error(message: str) -> "LossInputError":
    from evert.trainers.engine.common.errors import LossInputError

    return LossInputError(message)


def get_loss(name: str) -> Loss:
    """Look up a loss by Tinker's name for it."""
    loss = LOSSES.get(cast(LossName, name))
    if loss is None:
        raise _input_error(
            f"The embedded engine has no loss {name!r}; it has {', '.join(LOSSES)}. "
            "Use one of them (an asynchronous run's is async_config.loss_fn), or "
            "forward_backward_custom with a function of your own."
        )
    return loss


def resolve_settings(name: str, config: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the loss's default settings, overridden by ``loss_fn_config``."""
    defaults = get_loss(name).settings
    settings = dict(defaults)
    for key, value in (config or {}).items():
        if key not in defaults:
            raise _input_error(
                f"loss_fn_config of {name!r} has the key {key!r}; "
                f"expected only {sorted(defaults) or 'no keys at all'}. Remove it."
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _input_error(
                f"loss_fn_config[{key!r}] of {name!r} is {value!r}; expected a number."
            )
        settings[key] = float(value)
    return settings


def check_inputs(name: str, keys: Mapping[str, Any], where: str) -> None:
    """Check that a datum has the loss's inputs and no unknown ones; errors call it ``where``."""
    loss = get_loss(name)
    required = {"target_tokens", *loss.required}
    missing = sorted(required - set(keys))
    extra = sorted(set(keys) - required - set(loss.optional))
    if missing or extra:
        raise _input_error(
            f"{where} for {name!r} has loss_fn_inputs {sorted(keys)}: "
            f"missing {missing or 'none'}, unknown {extra or 'none'}. "
            f"Pass exactly {sorted(required)}."
        )


def cross_entropy(logprobs: "Tensor", inputs: Inputs, settings: Settings) -> "Tensor":
    """Weighted negative log-likelihood, summed."""
    return -(logprobs * inputs["weights"]).sum()


def importance_sampling(logprobs: "Tensor", inputs: Inputs, settings: Settings) -> "Tensor":
    """Policy gradient with the exact likelihood ratio, unclipped."""
    return -(_ratio(logprobs, inputs) * inputs["advantages"]).sum()


def ppo(logprobs: "Tensor", inputs: Inputs, settings: Settings) -> "Tensor":
    """PPO's pessimistic minimum of the clipped and the unclipped objective."""
    return _pessimistic(_ratio(logprobs, inputs), inputs, settings)


def cispo(logprobs: "Tensor", inputs: Inputs, settings: Settings) -> "Tensor":
    """REINFORCE weighted by the clipped and detached ratio."""
    weight = _clip(_ratio(logprobs, inputs), inputs, settings).detach()
    return -(weight * logprobs * inputs["advantages"]).sum()


def dro(logprobs: "Tensor", inputs: Inputs, settings: Settings) -> "Tensor":
    """Direct reward optimisation: the advantage, with a quadratic penalty on log p - log q."""
    distance = (logprobs - inputs["logprobs"]) ** 2 * _is_sampled(inputs)
    return -(logprobs * inputs["advantages"] - 0.5 * settings["beta"] * distance).sum()


def gspo(logprobs: "Tensor", inputs: Inputs, settings: Settings) -> "Tensor":
    """PPO's objective with one ratio per datum: the geometric mean over its sampled tokens."""
    mask = inputs.get("sequence_ratio_mask")
    counted = _is_sampled(inputs) if mask is None else mask != 0
    distances = (logprobs.detach() - inputs["logprobs"])[counted]
    mean = distances.sum() / max(1, len(distances))
    return _pessimistic((mean + logprobs - logprobs.detach()).exp(), inputs, settings)


def stable_reinforce(logprobs: "Tensor", inputs: Inputs, settings: Settings) -> "Tensor":
    """REINFORCE on sampled tokens, with ``kl_coeff`` times a quadratic penalty on log p - log q."""
    distance = (logprobs - inputs["logprobs"]) ** 2
    gain = logprobs * inputs["advantages"] - 0.5 * settings["kl_coeff"] * distance
    return -(gain * inputs["sampled"]).sum()


@cache
def warn_of_alpha() -> None:
    """Warn once that ``stable_reinforce`` may differ from the service's loss."""
    logger.warning(
        "stable_reinforce is in alpha, and the service's formula is not public: the embedded "
        "engine computes REINFORCE on the sampled tokens. On-policy their gradients agree."
    )


def _is_sampled(inputs: Inputs) -> "Tensor":
    """Return which tokens were sampled; for others, the Cookbook's loop sends 0 in both inputs."""
    return (inputs["advantages"] != 0) | (inputs["logprobs"] != 0)


def _ratio(logprobs: "Tensor", inputs: Inputs) -> "Tensor":
    return (logprobs - inputs["logprobs"]).exp()


def _pessimistic(ratio: "Tensor", inputs: Inputs, settings: Settings) -> "Tensor":
    clipped, advantages = _clip(ratio, inputs, settings), inputs["advantages"]
    return -(ratio * advantages).minimum(clipped * advantages).sum()


def _clip(ratio: "Tensor", inputs: Inputs, settings: Settings) -> "Tensor":
    low, high = (
        inputs.get(key, ratio.new_tensor(settings[key]))
        for key in ("clip_low_threshold", "clip_high_threshold")
    )
    return ratio.clamp(low, high)


_RL = ("logprobs", "advantages")
_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}

LOSSES: Mapping[LossName, Loss] = {
    "cross_entropy": Loss(cross_entropy, ("weights",), {}),
    "importance_sampling": Loss(importance_sampling, _RL, {}),
    "ppo": Loss(ppo, _RL, _CLIP),
    "cispo": Loss(cispo, _RL, _CLIP),
    "dro": Loss(dro, _RL, {"beta": 0.05}),
    "gspo": Loss(gspo, _RL, _CLIP, by_datum=True),
    "stable_reinforce": Loss(stable_reinforce, _RL, {"kl_coeff": 0.0}, from_spans=True),
}
