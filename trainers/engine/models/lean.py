"""A lean forward pass for Llama-like models, which fuses small operations into larger ones.

With a million-parameter model, the run time depends on the number of operations rather than their
size. ``LeanModel`` represents a Qwen2, Qwen3 or Llama model with the query, key and value
projections fused into one matrix, and the gate and up projections into another. It is either a
copy or a view of the original model.

In a copy, the weights are frozen, and

- the LoRA adapter, if any, is merged;
- the two halves of each head are interleaved, so that the rotary embedding is a single complex
  product (applying the same permutation to queries and keys doesn't change the scores);
- attention's factor ``1 / sqrt(D)`` is folded into the query projection.

A view uses the model's original weights, which ``lay_out`` has made adjacent in memory, and adds
the adapter's delta to their output (``adapters.py``). This way, a large base model is in memory
only once. Views are differentiable with respect to the trained weights. The logits of copies and
views are equal to the original model's up to rounding. Attention and the key-value cache are up to
the caller (``attend``).

Shapes: B rows, T tokens per row, H hidden, Hq query and Hkv key heads, D head size, V vocabulary.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evert.trainers.engine.models.adapters import (
    Delta,
    add_delta,
    base_layer,
    batch_deltas,
    delta_of,
)
from evert.trainers.engine.models.base_models import attention_sizes, base_of
from evert.trainers.engine.models.logits import checkpointed, float_logits
from evert.trainers.engine.models.products import add_product, linear

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries [B,T,Hq,D], keys [B,T,Hkv,D], values [B,T,Hkv,D]) -> [B,T,Hq*D]"""

_FAMILIES = ("qwen2", "qwen3", "llama")
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class Fused:
    """Several linear layers fused into one."""

    weight: Tensor  # [out, in]
    bias: Tensor | None = None  # [out]; None if there is no bias
    delta: Delta | None = None  # None if there is no adapter or it has been merged

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the layers: [..., in] -> [..., out]."""
        return add_delta(linear(x, self.weight, self.bias), x, self.delta)

    def onto(self, before: Tensor, x: Tensor) -> Tensor:
        """Return ``before + self(x)``. Like ``add_product``, this may overwrite ``before``."""
        if self.bias is not None:
            return before + self(x)
        return add_delta(add_product(before, x, self.weight), x, self.delta)


@dataclass(frozen=True)
class LeanLayer:
    """The fused weights of one layer. I is the intermediate size of the feed-forward block."""

    attention_norm: Tensor  # [H]
    qkv: Fused  # H -> (Hq + 2 Hkv) D
    qk_weight: Tensor | None  # [Hq + Hkv, D or 1] float32 scale of queries and keys (None: all 1)
    out: Fused  # Hq D -> H
    mlp_norm: Tensor  # [H]
    gate_up: Fused  # H -> 2 I
    down: Fused  # I -> H


class LeanModel:
    """A Llama-like model with fused weights; see the module docstring."""

    def __init__(self, model: Any, *, copied: bool = True) -> None:
        """Build a copy or a view of a model for which ``can_be_lean`` returns True."""
        base: Any = base_of(model)
        self._copied = copied
        self.query_heads, self.key_heads, self.head_size = attention_sizes(base.config)
        self.eps: float = base.config.rms_norm_eps
        self._scale = self.head_size**-0.5
        self.embedding = self._weight(base.model.embed_tokens.weight)
        self.final_norm = self._weight(base.model.norm.weight)
        head = base.lm_head
        tied = getattr(head, "weight", None) is base.model.embed_tokens.weight
        self.head = self.embedding if tied else self._fused_linears(head).weight
        self.head_delta = None if copied else delta_of(head)
        self._normalises_heads = hasattr(base.model.layers[0].self_attn, "q_norm")
        self.layers = [self._fuse(layer) for layer in base.model.layers]
        self._inverse_frequencies: Tensor = base.model.rotary_emb.inv_freq.detach().float().clone()
        self._rotary_scale = float(base.model.rotary_emb.attention_scaling)
        self.rotary = self._rotary_table(512)  # [positions, D / 2], complex

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the weights and the key-value cache."""
        return self.embedding.dtype

    def hidden(
        self, tokens: Tensor, positions: Tensor, attend: Attend, *, checkpointing: bool = False
    ) -> Tensor:
        """Return the final normalised hidden states [B, T, H] for [B, T] ids and positions.

        ``attend`` computes attention. With ``checkpointing``, layers are recomputed in the
        backward pass.
        """
        x = F.embedding(tokens, self.embedding)
        rotary = self.rotary[positions].unsqueeze(2)
        for index, layer in enumerate(self.layers):
            if checkpointing:
                x = checkpointed(self._layer, index, layer, x, rotary, attend)
            else:
                x = self._layer(index, layer, x, rotary, attend)
        return self._normalise(x, self.final_norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits: [..., H] -> [..., V], in float32."""
        return add_delta(float_logits(hidden, self.head), hidden, self.head_delta)

    def reserve(self, length: int) -> None:
        """Make sure the rotary table covers all positions below ``length``."""
        if length > self.rotary.shape[0]:
            self.rotary = self._rotary_table(max(length, 2 * self.rotary.shape[0]))

    def _layer(
        self, index: int, layer: LeanLayer, x: Tensor, rotary: Tensor, attend: Attend
    ) -> Tensor:
        x = layer.out.onto(x, self._attention(index, layer, x, rotary, attend))
        return layer.down.onto(x, self._feed_forward(layer, x))

    def _attention(
        self, index: int, layer: LeanLayer, x: Tensor, rotary: Tensor, attend: Attend
    ) -> Tensor:
        heads = self.query_heads + self.key_heads
        normed = self._normalise(x, layer.attention_norm)
        projected = layer.qkv(normed).view(*x.shape[:2], heads + self.key_heads, self.head_size)
        qk, values = projected[:, :, :heads], projected[:, :, heads:]
        if self._normalises_heads:
            qk = F.rms_norm(qk, (self.head_size,), None, self.eps)
        if layer.qk_weight is not None:
            qk = qk * layer.qk_weight
        qk = torch.view_as_real(self._pairs(qk.float()) * rotary).flatten(-2).to(x.dtype)
        queries, keys = qk[:, :, : self.query_heads], qk[:, :, self.query_heads :]
        return attend(index, queries, keys, values)

    def _pairs(self, heads: Tensor) -> Tensor:
        """Combine pairs of values into complex numbers for RoPE: [..., D] -> [..., D / 2]."""
        if self._copied:
            return torch.view_as_complex(heads.view(*heads.shape[:-1], -1, 2))
        return torch.complex(*heads.chunk(2, dim=-1))

    def _feed_forward(self, layer: LeanLayer, x: Tensor) -> Tensor:
        gate, up = layer.gate_up(self._normalise(x, layer.mlp_norm)).chunk(2, dim=-1)
        return F.silu(gate) * up

    def _normalise(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.eps)

    def _rotary_table(self, length: int) -> Tensor:
        positions = torch.arange(length, device=self._inverse_frequencies.device)
        angles = positions.float()[:, None] * self._inverse_frequencies
        return torch.polar(torch.full_like(angles, self._rotary_scale), angles)

    def _fuse(self, layer: Any) -> LeanLayer:
        attention, mlp = layer.self_attn, layer.mlp
        qkv = self._fused_linears(attention.q_proj, attention.k_proj, attention.v_proj)
        if self._copied:
            scale = 1.0 if self._normalises_heads else self._scale
            bias = None if qkv.bias is None else self._interleave_qkv(qkv.bias, scale)
            qkv = Fused(self._interleave_qkv(qkv.weight, scale), bias)
        return LeanLayer(
            attention_norm=self._weight(layer.input_layernorm.weight),
            qkv=qkv,
            qk_weight=self._qk_weight(attention),
            out=self._fused_linears(attention.o_proj),
            mlp_norm=self._weight(layer.post_attention_layernorm.weight),
            gate_up=self._fused_linears(mlp.gate_proj, mlp.up_proj),
            down=self._fused_linears(mlp.down_proj),
        )

    def _qk_weight(self, attention: Any) -> Tensor | None:
        if self._normalises_heads:
            query, key = attention.q_norm.weight.float(), attention.k_norm.weight.float()
            if self._copied:
                query, key = self._interleave(query.detach()), self._interleave(key.detach())
        elif self._copied:  # the scale is already folded into the projections
            return None
        else:
            query = key = torch.ones(1, device=self.device)
        heads = [query * self._scale] * self.query_heads + [key] * self.key_heads
        return torch.stack(heads)

    def _weight(self, tensor: Tensor) -> Tensor:
        return tensor.detach().clone() if self._copied else tensor

    def _fused_linears(self, *linears: Any) -> Fused:
        """Fuse linear layers, either as views with deltas or as copies with merged adapters."""
        bases = [base_layer(layer) for layer in linears]
        weights = [*map(_merged, linears)] if self._copied else [base.weight for base in bases]
        biases = [base.bias for base in bases]
        bias = None if any(part is None for part in biases) else self._weight(_concat(biases))
        return Fused(_concat(weights), bias, None if self._copied else delta_of(*linears))

    def _interleave_qkv(self, qkv: Tensor, scale: float) -> Tensor:
        heads = (self.query_heads, self.key_heads, self.key_heads)
        query, key, value = torch.split(qkv, [count * self.head_size for count in heads])
        return torch.cat([self._interleave(query) * scale, self._interleave(key), value])

    def _interleave(self, rows: Tensor) -> Tensor:
        """Interleave the two halves of each head along the first axis."""
        half = self.head_size // 2
        split = rows.reshape(-1, 2, half, *rows.shape[1:])
        return split.transpose(1, 2).reshape(rows.shape)


def mix_adapters(models: Sequence[LeanModel], indices: Tensor) -> LeanModel:
    """Combine views into one model that uses the adapter of ``models[indices[i]]`` for row i."""
    joint = copy.copy(models[0])
    joint.head_delta = batch_deltas([model.head_delta for model in models], indices)
    joint.layers = [
        replace(
            layers[0],
            qkv=_batch_deltas([layer.qkv for layer in layers], indices),
            out=_batch_deltas([layer.out for layer in layers], indices),
            gate_up=_batch_deltas([layer.gate_up for layer in layers], indices),
            down=_batch_deltas([layer.down for layer in layers], indices),
        )
        for layers in zip(*(model.layers for model in models), strict=True)
    ]
    return joint


def _batch_deltas(views: Sequence[Fused], indices: Tensor) -> Fused:
    return replace(views[0], delta=batch_deltas([view.delta for view in views], indices))


def can_be_lean(model: Any) -> bool:
    """Return whether ``LeanModel`` supports this model's architecture and config."""
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


def lay_out(model: Any) -> None:
    """Freeze the model, and make the weights that ``LeanModel`` fuses contiguous in memory."""
    placed: set[int] = set()
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        placed |= _lay_side_by_side(attention.q_proj, attention.k_proj, attention.v_proj)
        placed |= _lay_side_by_side(mlp.gate_proj, mlp.up_proj)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        if id(parameter) not in placed:
            # Loaded weights are views of a memory-mapped file, and keeping even a few of them
            # would keep the whole file in memory.
            parameter.data = parameter.data.clone()


def _lay_side_by_side(*linears: nn.Linear) -> set[int]:
    """Turn the layers' weights into views of one matrix. Return the new parameters' ids."""
    placed: set[int] = set()
    for kind in ("weight", "bias"):
        parts = [getattr(linear, kind) for linear in linears]
        if any(part is None for part in parts):
            continue
        joined = torch.cat([part.detach() for part in parts])
        for layer, part in zip(linears, torch.split(joined, [*map(len, parts)]), strict=True):
            parameter = nn.Parameter(part, requires_grad=False)
            setattr(layer, kind, parameter)
            placed.add(id(parameter))
    return placed


def _concat(parts: list[Tensor]) -> Tensor:
    """Concatenate tensors. If they are adjacent in memory, return a view."""
    if len(parts) == 1:
        return parts[0]
    first, place = parts[0], parts[0].data_ptr()
    memory = first.untyped_storage().data_ptr()
    for part in parts:
        laid_out = part.untyped_storage().data_ptr() == memory and part.data_ptr() == place
        if not laid_out or part.requires_grad:
            return torch.cat(parts)
        place += part.nbytes
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())


def _merged(linear: Any) -> Tensor:
    weight: Tensor = base_layer(linear).weight.detach().clone()
    for adapter in getattr(linear, "active_adapters", ()):
        weight += linear.get_delta_weight(adapter).detach().to(weight.dtype)
    return weight
