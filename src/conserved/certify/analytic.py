r"""Fused functions of torch by the formulas that define them, where derivatives of any order are right and analytic.

    softmax(z) = exp(z)/Σ exp(z)         softplus(x) = log(1 + exp(βx))/β         layer norm(x) = γ (x − mean)·(var + ε)^(−1/2) + β

Fused kernels bring derivatives of their own. Those of torch's layer norm are wrong from the third one on, with forward over reverse
derivatives (2.13: the brackets of three fields then break the laws of the gain); those of fused attention do not exist; the maximum
that softmax subtracts and the threshold of softplus are no analytic functions.
"""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F  # ruff: ignore[lowercase-imported-as-non-lowercase]
from torch import Tensor
from torch.overrides import TorchFunctionMode


def _softmax(z: Tensor, dim: int, *_: Any, dtype: Any = None, **__: Any) -> Tensor:
    e = z.exp()
    return e / e.sum(dim, keepdim=True)


def _log_softmax(z: Tensor, dim: int, *_: Any, dtype: Any = None, **__: Any) -> Tensor:
    return z - _logsumexp(z, dim, keepdim=True)


def _logsumexp(z: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    return z.exp().sum(dim, keepdim=keepdim).log()


def _softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    return ((beta * x).exp() + 1).log() / beta


def _mish(x: Tensor, inplace: bool = False) -> Tensor:
    return x * _softplus(x).tanh()


def _layer_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, *_: Any) -> Tensor:
    return _scaled(_normalized(x, tuple(range(-len(shape), 0)), eps), weight, bias)


def _group_norm(x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, *_: Any) -> Tensor:
    grouped = x.reshape(len(x), groups, -1, *x.shape[2:])
    over = (slice(None), *(None for _ in x.shape[2:]))
    out = _normalized(grouped, tuple(range(2, grouped.ndim)), eps).flatten(1, 2)
    return _scaled(out, weight if weight is None else weight[over], bias if bias is None else bias[over])


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


FORMULAS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.softmax, Tensor.softmax, F.softmax, torch.special.softmax), _softmax),
    **dict.fromkeys((torch.log_softmax, Tensor.log_softmax, F.log_softmax, torch.special.log_softmax), _log_softmax),
    **dict.fromkeys((torch.logsumexp, Tensor.logsumexp, torch.special.logsumexp), _logsumexp),
    **dict.fromkeys((torch.layer_norm, F.layer_norm), _layer_norm),
    **dict.fromkeys((torch.group_norm, F.group_norm), _group_norm),
    F.softplus: _softplus,
    F.mish: _mish,
    F.scaled_dot_product_attention: _attention,
}


class Analytic(TorchFunctionMode):
    """Evaluates the functions above by their formulas."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        formula = FORMULAS.get(func)
        if formula is not None and args and args[0].is_floating_point():
            with torch._C.DisableTorchFunction():
                return formula(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))
