r"""Fused functions of torch by the formulas that define them, where derivatives of any order are right and analytic.

    softmax(z) = exp(z)/Σ exp(z)         softplus(x) = log(1 + exp(βx))/β         layer norm(x) = γ (x − mean)·(var + ε)^(−1/2) + β

Fused kernels bring derivatives of their own. Those of torch's layer norm and batch norm are wrong from the third one on, with forward
over reverse derivatives (2.13: the brackets of three fields then break the laws of the gain); those of fused attention do not exist; the
maximum that softmax subtracts and the threshold of softplus are no analytic functions.
"""

from collections.abc import Callable, Sequence
from math import sqrt
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F  # ruff: ignore[lowercase-imported-as-non-lowercase]
from torch import Tensor
from torch.overrides import TorchFunctionMode


def _axis(z: Tensor, dim: int | None) -> int:
    """The axis of a softmax; without one, that which torch takes."""
    return dim if dim is not None else 0 if z.ndim in (0, 1, 3) else 1


def _softmax(z: Tensor, dim: int | None = None, *_: Any, dtype: Any = None, **__: Any) -> Tensor:
    e = z.exp()
    return e / e.sum(_axis(z, dim), keepdim=True)


def _softmin(z: Tensor, dim: int | None = None, *_: Any, dtype: Any = None, **__: Any) -> Tensor:
    return _softmax(-z, dim)


def _log_softmax(z: Tensor, dim: int | None = None, *_: Any, dtype: Any = None, **__: Any) -> Tensor:
    return z - _logsumexp(z, _axis(z, dim), keepdim=True)


def _logsumexp(z: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    return z.exp().sum(dim, keepdim=keepdim).log()


def _softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    return ((beta * x).exp() + 1).log() / beta


def _mish(x: Tensor, inplace: bool = False) -> Tensor:
    return x * _softplus(x).tanh()


def _layer_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, *_: Any, **__: Any
) -> Tensor:
    return _scaled(_normalized(x, tuple(range(-len(normalized_shape), 0)), eps), weight, bias)


def _group_norm(x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, *_: Any, **__: Any) -> Tensor:
    grouped = x.reshape(len(x), num_groups, -1, *x.shape[2:])
    over = (slice(None), *(None for _ in x.shape[2:]))
    out = _normalized(grouped, tuple(range(2, grouped.ndim)), eps).flatten(1, 2)
    return _scaled(out, weight if weight is None else weight[over], bias if bias is None else bias[over])


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    over = (slice(None), *(None for _ in x.shape[2:]))
    if training or running_mean is None or running_var is None:
        out = _normalized(x, (0, *range(2, x.ndim)), eps)
    else:
        out = (x - running_mean[over]) * (running_var[over] + eps).rsqrt()
    return _scaled(out, weight if weight is None else weight[over], bias if bias is None else bias[over])


def _instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if use_input_stats:
        return _group_norm(x, x.shape[1], weight, bias, eps)
    return _batch_norm(x, running_mean, running_var, weight, bias, eps=eps)


def _normalized(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    centred = x - x.mean(axes, keepdim=True)
    return centred * (centred.square().mean(axes, keepdim=True) + eps).rsqrt()


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if dropout_p:
        return F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], dim=-3) for x in (key, value))
    logits = query @ key.mT * (1 / sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
    if attn_mask is not None:
        logits = logits.masked_fill(~attn_mask, float("-inf")) if attn_mask.dtype is torch.bool else logits + attn_mask
    return _softmax(logits, -1) @ value


_multi_head_attention = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "has_torch_function": lambda _: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)
"""Torch's own, which does not ask whether it is overridden: it runs inside the mode, where that would never end."""


FORMULAS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.softmax, Tensor.softmax, F.softmax, torch.special.softmax), _softmax),
    **dict.fromkeys((torch.log_softmax, Tensor.log_softmax, F.log_softmax, torch.special.log_softmax), _log_softmax),
    **dict.fromkeys((torch.logsumexp, Tensor.logsumexp, torch.special.logsumexp), _logsumexp),
    **dict.fromkeys((torch.layer_norm, F.layer_norm), _layer_norm),
    **dict.fromkeys((torch.group_norm, F.group_norm), _group_norm),
    F.batch_norm: _batch_norm,
    F.instance_norm: _instance_norm,
    F.softmin: _softmin,
    F.softplus: _softplus,
    F.mish: _mish,
    F.scaled_dot_product_attention: _attention,
}


class Analytic(TorchFunctionMode):
    """Evaluates the functions above by their formulas."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.multi_head_attention_forward:
            with self:  # for the functions that it calls
                return _multi_head_attention(*args, **(kwargs or {}))
        formula, named = FORMULAS.get(func), dict(kwargs or {})
        first = args or tuple(named.pop(name) for name in ("input", "query") if formula and name in named)
        if formula is not None and first and first[0].is_floating_point():
            with torch._C.DisableTorchFunction():
                return formula(*first, **named)
        return func(*args, **(kwargs or {}))
