"""Positional encodings: sinusoidal, rotary (full or partial, two pair layouts), ALiBi."""

import torch
from torch import Tensor


def sinusoidal(length: int, dim: int, like: Tensor) -> Tensor:
    """The fixed table P[p, 2j] = sin(p·ω_j), P[p, 2j+1] = cos(p·ω_j), ω_j = 10000^(−2j/dim).

    Returns:
        Tensor of shape (length, dim), on the device and in the dtype of `like`.
    """
    angle = _angles(length, (dim + 1) // 2, 2 / dim, like)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, :dim]


def rotate(x: Tensor, rotary_dim: int, interleaved: bool) -> Tensor:
    """Rotate the first `rotary_dim` entries of the last axis, pair j at position p by the angle p·ω_j.

    Args:
        x: queries or keys, (…, tokens, head_dim).
        rotary_dim: even number of entries that are rotated; the rest pass unchanged.
        interleaved: pairs are (2j, 2j+1) if true, (j, j + rotary_dim/2) if false.
    """
    half = rotary_dim // 2
    angle = _angles(x.shape[-2], half, 1 / half, x)
    cos, sin = angle.cos(), angle.sin()
    rotated, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    pair = (half, 2) if interleaved else (2, half)
    axis = -1 if interleaved else -2
    first, second = torch.unflatten(rotated, -1, pair).unbind(axis)
    turned = torch.stack((first * cos - second * sin, first * sin + second * cos), dim=axis)
    return torch.cat((turned.flatten(-2), rest), dim=-1)


def alibi(heads: int, length: int, like: Tensor) -> Tensor:
    """The bias −m_h·(p − q) on the logits, with slopes m_h = 2^(−8h/heads).

    Returns:
        Tensor of shape (heads, length, length).
    """
    slope = 2.0 ** (-8 * torch.arange(1, heads + 1, device=like.device, dtype=like.dtype) / heads)
    place = torch.arange(length, device=like.device, dtype=like.dtype)
    return -slope[:, None, None] * (place[:, None] - place[None, :]).abs()


def _angles(length: int, frequencies: int, power: float, like: Tensor) -> Tensor:
    """Angles p·10000^(−j·power), shape (length, frequencies)."""
    place = torch.arange(length, device=like.device, dtype=like.dtype)
    omega = 10000.0 ** (-power * torch.arange(frequencies, device=like.device, dtype=like.dtype))
    return place[:, None] * omega
