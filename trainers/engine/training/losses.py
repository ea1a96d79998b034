"""The losses supported by Tinker's ``forward_backward``, as pure functions of per-token tensors.

Each loss takes the learner's log-probabilities of the target tokens and the datum's other tensors,
all of the same shape, and returns a scalar: the **sum** over tokens (never the mean). Let ``p`` be
the learner's probability of a token, ``q`` the sampler's, ``A`` the advantage and ``r = p / q``:

    cross_entropy         -sum(w log p)
    importance_sampling   -sum(r A)
    ppo                   -sum(min(r A, clip(r, low, high) A))          low 0.8, high 1.2
    cispo                 -sum(stop_gradient(clip(r, low, high)) A log p)   low 0.8, high 1.2
    dro                   -sum(A log p - beta / 2 (log p - log q)^2)    beta 0.05
                          The second term is omitted where A and log q are both 0, as is the case
                          for prompt tokens in data from the Cookbook's training loop.
    gspo                  Like ppo, but all tokens of a datum share one ratio, the geometric mean
                          of r where ``sequence_ratio_mask`` is not 0. The gradient still goes
                          through each token's own log p (GSPO-token, arXiv:2507.18071). Without
                          the mask, which the Cookbook's loop doesn't send, the mean is taken
                          where A or log q is not 0.
    stable_reinforce      -sum(A log p - kl_coeff / 2 (log p - log q)^2) over sampled tokens
                          kl_coeff 0

The service's formula for stable_reinforce is not public, so we use REINFORCE. On-policy, all
variants of REINFORCE have the same gradient. Off-policy, they may differ, so we log a warning once.

Settings are passed in ``loss_fn_config``. The thresholds low and high are called
``clip_low_threshold`` and ``clip_high_threshold``, and are bounds on the ratio itself. They can
also be set per token, with loss inputs of the same names.

The run settings import the losses' names from this module, so it imports torch and tinker only
inside functions.
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
"""Losses that use advantages."""

LossName = Literal["cross_entropy"] | LossFn
Inputs: TypeAlias = Mapping[str, "Tensor"]
Settings = Mapping[str, float]


@dataclass(frozen=True)
class Loss:
    """A loss: its formula, inputs and settings."""

    formula: Callable[["Tensor", Inputs, Settings], "Tensor"]  # (logprobs, inputs, settings)
    required: tuple[str, ...]  # loss inputs that a datum needs in addition to ``target_tokens``
    settings: Mapping[str, float]  # keys allowed in ``loss_fn_config``, with their defaults
    by_datum: bool = False  # whether the formula is applied to each datum separately
    from_spans: bool = False  # whether the formula uses ``sampled`` (0 or 1, from the provenance)

    def total(self, logprobs: "Tensor", data: Sequence[Inputs], settings: Settings) -> "Tensor":
        """Compute the total loss. ``logprobs`` are the log-probabilities of all data, in order."""
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
        """Optional inputs: per-token settings, gspo's mask, and ``weights``, which is ignored."""
        mask = ("sequence_ratio_mask",) if self.by_datum else ()
        return ("weights", *mask, *(key for key in self.settings if key.startswith("clip_")))


def _input_error(message: str) -> "LossInputError":
    from evert.trainers.engine.common.errors import LossInputError

    return LossInputError(message)


def get_loss(name: str) -> Loss:
    """Look up a loss by its name in Tinker."""
    loss = LOSSES.get(cast(LossName, name))
    if loss is None:
        raise _input_error(
            f"Unknown loss {name!r}; the embedded engine supports {', '.join(LOSSES)}. "
            "Use one of them (for asynchronous runs, set async_config.loss_fn), or pass a "
            "custom loss function to forward_backward_custom."
        )
    return loss


def resolve_settings(name: str, config: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the loss's settings: its defaults, updated with ``loss_fn_config``."""
    defaults = get_loss(name).settings
    settings = dict(defaults)
    for key, value in (config or {}).items():
        if key not in defaults:
            raise _input_error(
                f"loss_fn_config for {name!r} contains the key {key!r}; "
                f"expected only {sorted(defaults) or 'no keys'}. Remove it."
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _input_error(
                f"loss_fn_config[{key!r}] for {name!r} is {value!r}; expected a number."
            )
        settings[key] = float(value)
    return settings


def check_inputs(name: str, keys: Mapping[str, Any], where: str) -> None:
    """Raise an error if a datum's loss inputs are missing or unknown. ``where`` names the datum."""
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
    """Policy gradient with the unclipped likelihood ratio."""
    return -(_ratio(logprobs, inputs) * inputs["advantages"]).sum()


def ppo(logprobs: "Tensor", inputs: Inputs, settings: Settings) -> "Tensor":
    """PPO: the minimum of the clipped and unclipped objectives."""
    return _pessimistic(_ratio(logprobs, inputs), inputs, settings)


def cispo(logprobs: "Tensor", inputs: Inputs, settings: Settings) -> "Tensor":
    """REINFORCE weighted by the clipped and detached ratio."""
    weight = _clip(_ratio(logprobs, inputs), inputs, settings).detach()
    return -(weight * logprobs * inputs["advantages"]).sum()


def dro(logprobs: "Tensor", inputs: Inputs, settings: Settings) -> "Tensor":
    """Direct reward optimisation, with a quadratic penalty on log p - log q."""
    distance = (logprobs - inputs["logprobs"]) ** 2 * _is_sampled(inputs)
    return -(logprobs * inputs["advantages"] - 0.5 * settings["beta"] * distance).sum()


def gspo(logprobs: "Tensor", inputs: Inputs, settings: Settings) -> "Tensor":
    """PPO with one ratio per datum, the geometric mean over its sampled tokens."""
    mask = inputs.get("sequence_ratio_mask")
    counted = _is_sampled(inputs) if mask is None else mask != 0
    distances = (logprobs.detach() - inputs["logprobs"])[counted]
    mean = distances.sum() / max(1, len(distances))
    return _pessimistic((mean + logprobs - logprobs.detach()).exp(), inputs, settings)


def stable_reinforce(logprobs: "Tensor", inputs: Inputs, settings: Settings) -> "Tensor":
    """REINFORCE on sampled tokens, with a quadratic penalty on log p - log q (``kl_coeff``)."""
    distance = (logprobs - inputs["logprobs"]) ** 2
    gain = logprobs * inputs["advantages"] - 0.5 * settings["kl_coeff"] * distance
    return -(gain * inputs["sampled"]).sum()


@cache
def warn_of_alpha() -> None:
    """Warn once that ``stable_reinforce`` may differ from the hosted service's loss."""
    logger.warning(
        "stable_reinforce is in alpha, and the service's formula is not public. The embedded "
        "engine uses REINFORCE on the sampled tokens, which has the same gradient on-policy."
    )


def _is_sampled(inputs: Inputs) -> "Tensor":
    """Return which tokens were sampled.

    The Cookbook's loop sets the advantages and log-probabilities of all other tokens to 0.
    """
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
