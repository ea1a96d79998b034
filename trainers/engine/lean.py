"""A lean forward pass for Llama-like models: few, fused operations, and a cache of one's own.

For a model of a million parameters, what costs time is the number of operations, not their size.
``LeanModel`` holds a frozen copy of a Qwen2, Qwen3 or Llama model with

- query, key and value projections in one matrix, gate and up projections in another;
- a LoRA adapter, where there is one, merged in;
- the two halves of each head interleaved, so that the rotary embedding is one complex product
  (scores do not change when queries and keys are permuted alike);
- the ``1 / sqrt(D)`` of attention folded into the queries.

Its logits equal the original's up to rounding. What attends to what is the caller's business: the
forward pass takes an ``attend`` function, and ``batches.py`` has one for each use.

Shapes: B rows, T tokens a row, H hidden, Hq query heads, Hkv key heads, D head size, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evert.trainers.engine.models import base_of

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries [B,T,Hq,D], keys [B,T,Hkv,D], values [B,T,Hkv,D]) -> [B,T,Hq*D]"""

_FAMILIES = ("qwen2", "qwen3", "llama")
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class LeanLayer:
    """The weights of one layer, fused."""

    attention_norm: Tensor
    """[H]"""
    qkv: Tensor
    """[(Hq + 2 Hkv) D, H]"""
    qkv_bias: Tensor | None
    """[(Hq + 2 Hkv) D], or None where the projections have no bias."""
    qk_norm: Tensor | None
    """[Hq + Hkv, D], or None where queries and keys are not normalised."""
    out: Tensor
    """[H, Hq D]"""
    out_bias: Tensor | None
    mlp_norm: Tensor
    """[H]"""
    gate_up: Tensor
    """[2 I, H], with I the size of the feed-forward layer."""
    gate_up_bias: Tensor | None
    down: Tensor
    """[H, I]"""
    down_bias: Tensor | None


class LeanModel:
    """A frozen, fused copy of a Llama-like model; see the module's docstring."""

    def __init__(self, model: Any) -> None:
        """Copy the weights of ``model``, which ``can_be_lean`` must have accepted."""
        base: Any = base_of(model)
        config = base.config
        self.query_heads: int = config.num_attention_heads
        self.key_heads: int = config.num_key_value_heads
        self.head_size: int = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        self.eps: float = config.rms_norm_eps
        self.embedding: Tensor = base.model.embed_tokens.weight.detach().clone()
        self.final_norm: Tensor = base.model.norm.weight.detach().clone()
        head = base.lm_head
        tied = getattr(head, "weight", None) is base.model.embed_tokens.weight
        self.head: Tensor = self.embedding if tied else _weight(head)
        self.layers = [self._fuse(layer) for layer in base.model.layers]
        self._inverse_frequencies: Tensor = base.model.rotary_emb.inv_freq.detach().float().clone()
        self._rotary_scale = float(base.model.rotary_emb.attention_scaling)
        self._rotary = self._rotary_table(512)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights, and of the key-value cache."""
        return self.embedding.dtype

    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Run the layers.

        Args:
            tokens: [B, T] token ids.
            positions: [B, T] position of each token in its own row.
            attend: What each layer's queries see.

        Returns:
            [B, T, H], normalised: ``logits`` turns any part of it into logits.
        """
        x = F.embedding(tokens, self.embedding)
        rotary = self._rotary[positions].unsqueeze(2)
        for index, layer in enumerate(self.layers):
            x = x + self._attention(index, layer, x, rotary, attend)
            x = x + self._feed_forward(layer, x)
        return self._normalise(x, self.final_norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [..., V], in float32."""
        return F.linear(hidden, self.head).float()

    def reserve(self, length: int) -> None:
        """Make sure that positions below ``length`` have a rotary embedding."""
        if length > self._rotary.shape[0]:
            self._rotary = self._rotary_table(max(length, 2 * self._rotary.shape[0]))

    def _attention(
        self, index: int, layer: LeanLayer, x: Tensor, rotary: Tensor, attend: Attend
    ) -> Tensor:
        heads = self.query_heads + self.key_heads
        projected = F.linear(self._normalise(x, layer.attention_norm), layer.qkv, layer.qkv_bias)
        projected = projected.view(*x.shape[:2], heads + self.key_heads, self.head_size)
        both, values = projected[:, :, :heads], projected[:, :, heads:]
        if layer.qk_norm is not None:
            both = F.rms_norm(both, (self.head_size,), None, self.eps) * layer.qk_norm
        pairs = torch.view_as_complex(both.float().view(*both.shape[:-1], -1, 2))
        both = torch.view_as_real(pairs * rotary).flatten(-2).to(x.dtype)
        queries, keys = both[:, :, : self.query_heads], both[:, :, self.query_heads :]
        return F.linear(attend(index, queries, keys, values), layer.out, layer.out_bias)

    def _feed_forward(self, layer: LeanLayer, x: Tensor) -> Tensor:
        both = F.linear(self._normalise(x, layer.mlp_norm), layer.gate_up, layer.gate_up_bias)
        gate, up = both.chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, layer.down, layer.down_bias)

    def _normalise(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.eps)

    def _rotary_table(self, length: int) -> Tensor:
        positions = torch.arange(length, device=self._inverse_frequencies.device)
        angles = positions.float()[:, None] * self._inverse_frequencies
        return torch.polar(torch.full_like(angles, self._rotary_scale), angles)

    def _fuse(self, layer: Any) -> LeanLayer:
        attention, mlp = layer.self_attn, layer.mlp
        scale = self.head_size**-0.5
        normed = hasattr(attention, "q_norm")
        q_scale = 1.0 if normed else scale
        qkv = torch.cat(
            [
                self._interleave(_weight(attention.q_proj)) * q_scale,
                self._interleave(_weight(attention.k_proj)),
                _weight(attention.v_proj),
            ]
        )
        return LeanLayer(
            attention_norm=layer.input_layernorm.weight.detach().clone(),
            qkv=qkv,
            qkv_bias=self._fused_qkv_bias(attention, q_scale),
            qk_norm=self._fused_qk_norm(attention, scale) if normed else None,
            out=_weight(attention.o_proj),
            out_bias=_bias(attention.o_proj),
            mlp_norm=layer.post_attention_layernorm.weight.detach().clone(),
            gate_up=torch.cat([_weight(mlp.gate_proj), _weight(mlp.up_proj)]),
            gate_up_bias=_joined(_bias(mlp.gate_proj), _bias(mlp.up_proj)),
            down=_weight(mlp.down_proj),
            down_bias=_bias(mlp.down_proj),
        )

    def _fused_qkv_bias(self, attention: Any, q_scale: float) -> Tensor | None:
        q, k, v = (_bias(getattr(attention, f"{name}_proj")) for name in "qkv")
        if q is None or k is None or v is None:
            return None
        return torch.cat([self._interleave(q) * q_scale, self._interleave(k), v])

    def _fused_qk_norm(self, attention: Any, scale: float) -> Tensor:
        query = self._interleave(attention.q_norm.weight.detach()) * scale
        key = self._interleave(attention.k_norm.weight.detach())
        return torch.stack([query] * self.query_heads + [key] * self.key_heads)

    def _interleave(self, rows: Tensor) -> Tensor:
        """Reorder the first axis, head by head, from (halves, pairs) to (pairs, halves)."""
        half = self.head_size // 2
        split = rows.reshape(-1, 2, half, *rows.shape[1:])
        return split.transpose(1, 2).reshape(rows.shape)


def can_be_lean(model: Any) -> bool:
    """Whether ``LeanModel`` computes what this model computes."""
    config = base_of(model).config
    rope = getattr(config, "rope_parameters", None) or {}
    layer_types = getattr(config, "layer_types", None) or []
    return (
        config.model_type in _FAMILIES
        and rope.get("rope_type", "default") in _ROPE_TYPES
        and getattr(config, "hidden_act", "silu") == "silu"
        and all(kind == "full_attention" for kind in layer_types)
        and not getattr(config, "use_sliding_window", False)
    )


def _weight(linear: Any) -> Tensor:
    """A copy of a linear layer's weight with its LoRA adapters, if any, added in."""
    base: nn.Linear = getattr(linear, "base_layer", linear)
    weight = base.weight.detach().clone()
    for adapter in getattr(linear, "active_adapters", ()):
        weight += linear.get_delta_weight(adapter).detach().to(weight.dtype)
    return weight


def _bias(linear: Any) -> Tensor | None:
    bias = getattr(linear, "base_layer", linear).bias
    return None if bias is None else bias.detach().clone()


def _joined(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return None if first is None or second is None else torch.cat([first, second])
