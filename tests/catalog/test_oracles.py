"""Laws of the catalogue against formulas written by hand in the notation of the papers."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from cases import EQUAL, build_at_generic_point, draw_inputs, pull_back
from cases import Case as _Case
from torch import Tensor

from conserved.catalog import (
    Attention,
    BatchNormBlock,
    Block,
    ConvolutionBlock,
    Decoder,
    GatedLinearUnit,
    InputConvexNetwork,
    LinearNetwork,
    LoRA,
    MatrixFactorization,
    MixtureOfExperts,
    NormalizedLinear,
    SoftmaxClassifier,
    TransformerConfig,
    VisionTransformer,
)
from conserved.law import gradient, rate, step_terms, value

F64 = torch.float64
P = dict[str, Tensor]


def heads(one: Callable[[P, int], Tensor], number: int) -> Callable[[P], Tensor]:
    """Stack a formula over heads."""
    return lambda p: torch.stack([one(p, h) for h in range(number)])


def rope_pair(p: P, h: int, j: int, first: int, second: int) -> Tensor:
    """‖Q⁽ʲ⁾‖² − ‖K⁽ʲ⁾‖² of one head, given the two columns of pair j."""
    q, k = p["Q"][h], p["K"][h]
    return (q[:, first] ** 2).sum() + (q[:, second] ** 2).sum() - (k[:, first] ** 2).sum() - (k[:, second] ** 2).sum()


def gpt(**options: object) -> Block:
    """A small GPT-2-like decoder."""
    base = {"vocab": 5, "dim": 4, "heads": 2, "mlp": ("gelu",), "hidden": 3, "tokens": 5, "norm": "layer", "position": "learned", "bias": True, "layers": 1}
    return Decoder(TransformerConfig(**(base | options)))  # type: ignore[arg-type]


def writers(p: P) -> Tensor:
    """Σ of squares of all that a one-layer GPT writes into its stream."""
    return sum(((p[n] ** 2).sum() for n in ("E", "P", "layers.0.attention.O", "layers.0.attention.b_O", "layers.0.mlp.A", "layers.0.mlp.a")), torch.zeros(()))


HAND: list[tuple[str, Callable[[], Block], str, Callable[[P], Tensor]]] = [
    (
        "linear: W₁W₁ᵀ + b₁b₁ᵀ − W₂ᵀW₂",
        partial(LinearNetwork, (4, 3, 5), bias=True),
        "hidden1.linear",
        lambda p: p["weights.0"] @ p["weights.0"].T + torch.outer(p["biases.0"], p["biases.0"]) - p["weights.1"].T @ p["weights.1"],
    ),
    ("factorization: UᵀU − VᵀV", partial(MatrixFactorization, 5, 3, rank=2), "nmf", lambda p: p["U"].T @ p["U"] - p["V"].T @ p["V"]),
    (
        "convex: ‖U[i,:]‖² + b_i² − ‖V[:,i]‖²",
        partial(InputConvexNetwork, 3, 5, 2),
        "icnn",
        lambda p: (p["U"] ** 2).sum(1) + p["b"] ** 2 - (p["V"] ** 2).sum(0),
    ),
    (
        "attention: QᵀQ − KᵀK",
        partial(Attention, 5, 2, 4),
        "query_key",
        heads(lambda p, h: p["Q"][h].T @ p["Q"][h] - p["K"][h].T @ p["K"][h], 2),
    ),
    (
        "attention: VᵀV + b bᵀ − OᵀO",
        partial(Attention, 5, 2, 4, bias=True),
        "value_output",
        heads(lambda p, h: p["V"][h].T @ p["V"][h] + torch.outer(p["b_V"][h], p["b_V"][h]) - p["O"][h].T @ p["O"][h], 2),
    ),
    (
        "grouped queries: Σ QᵀQ over a group − KᵀK",
        partial(Attention, 5, 4, 3, kv_heads=2, causal=True),
        "query_key",
        heads(lambda p, k: p["Q"][2 * k].T @ p["Q"][2 * k] + p["Q"][2 * k + 1].T @ p["Q"][2 * k + 1] - p["K"][k].T @ p["K"][k], 2),
    ),
    (
        "rotary, halves",
        partial(Attention, 5, 2, 6, position="rope"),
        "rope",
        lambda p: torch.stack([torch.stack([rope_pair(p, h, j, j, j + 3) for j in range(3)]) for h in range(2)]),
    ),
    (
        "rotary, neighbours, partial",
        partial(Attention, 5, 2, 6, position="rope", rotary_dim=4, interleaved=True),
        "rope",
        lambda p: torch.stack([torch.stack([rope_pair(p, h, j, 2 * j, 2 * j + 1) for j in range(2)]) for h in range(2)]),
    ),
    (
        "partial rotary, the rest: a matrix",
        partial(Attention, 5, 2, 6, position="rope", rotary_dim=2),
        "query_key",
        heads(lambda p, h: p["Q"][h][:, 2:].T @ p["Q"][h][:, 2:] - p["K"][h][:, 2:].T @ p["K"][h][:, 2:], 2),
    ),
    (
        "QK-norm: gains per pair",
        partial(Attention, 5, 2, 4, position="rope", qk_norm=True),
        "qk_gain_rope",
        lambda p: torch.stack([sum((p["gamma_Q"][i] ** 2 - p["gamma_K"][i] ** 2 for i in (j, j + 2)), torch.zeros(())) for j in range(2)]),
    ),
    ("SwiGLU: ‖A[:,i]‖² − ‖C[i,:]‖²", partial(GatedLinearUnit, 3, 5, 2), "glu", lambda p: (p["A"] ** 2).sum(0) - (p["C"] ** 2).sum(1)),
    (
        "mixture: experts",
        partial(MixtureOfExperts, 3, 4, 2, experts=3, top_k=2),
        "expert",
        heads(lambda p, e: torch.einsum("oi,oi->i", p["A"][e], p["A"][e]) - torch.einsum("id,id->i", p["C"][e], p["C"][e]), 3),
    ),
    ("mixture: Σ_e W_e", partial(MixtureOfExperts, 3, 4, 2, experts=3, top_k=2), "router", lambda p: p["W"][0] + p["W"][1] + p["W"][2]),
    (
        "gain stored as γ − 1",
        partial(NormalizedLinear, 4, (3, 2), "layer", 1.0),
        "norm.gain",
        lambda p: (1 + p["norm.gamma"]) ** 2 + p["norm.beta"] ** 2 - (p["maps.0"] ** 2).sum(0) - (p["maps.1"] ** 2).sum(0),
    ),
    (
        "convolution: per channel",
        partial(ConvolutionBlock, 2, 3, 3),
        "conv",
        lambda p: torch.stack([(p["W1"][i] ** 2).sum() + p["b1"][i] ** 2 - (p["W2"][:, i] ** 2).sum() for i in range(3)]),
    ),
    ("batch norm: ‖w‖² per channel", partial(BatchNormBlock, 2, 3), "batch_norm", lambda p: torch.stack([(p["W1"][i] ** 2).sum() for i in range(3)])),
    ("adapter: BᵀB − AAᵀ", partial(LoRA, 5, 4, 2), "lora", lambda p: p["B"].T @ p["B"] - p["A"] @ p["A"].T),
    ("classifier: Σ_c W[c,:]", partial(SoftmaxClassifier, 4, 3), "classifier", lambda p: torch.ones(3, dtype=F64) @ p["W"]),
    (
        "stream: tokens against positions",
        gpt,
        "tokens_positions.stream_exchange",
        lambda p: torch.einsum("vd->d", p["E"]) - torch.einsum("pd->d", p["P"]),
    ),
    ("stream: mean of O", gpt, "layers.0.attention.O.stream_mean", lambda p: torch.einsum("hdi->hi", p["layers.0.attention.O"])),
    ("stream: all writers", gpt, "stream_scale", writers),
    (
        "stream: all writers, tied",
        partial(gpt, tied=True),
        "stream_scale",
        lambda p: writers(p) - (p["norm.gamma"] ** 2).sum() - (p["norm.beta"] ** 2).sum(),
    ),
    (
        "vision: patch bias against positions after the class token's",
        partial(VisionTransformer, TransformerConfig(dim=4, norm="layer", position="learned", image=4, patch=2, layers=1)),
        "patch_positions.stream_exchange",
        lambda p: p["b_p"] - p["P"][1] - p["P"][2] - p["P"][3] - p["P"][4],
    ),
]


def assert_close(seen: Tensor, expected: Tensor) -> None:
    """Equal up to the table's tolerance, relative to the largest entry."""
    assert seen.shape == expected.shape
    assert float((seen - expected).abs().max()) <= EQUAL[F64] * (1 + float(expected.abs().max()))


def test_assert_close_rejects() -> None:
    """The comparator can fail."""
    with pytest.raises(AssertionError):
        assert_close(torch.zeros(2, dtype=F64), torch.full((2,), 10 * EQUAL[F64], dtype=F64))
    with pytest.raises(AssertionError):
        assert_close(torch.zeros(2), torch.zeros(2, 1))


@pytest.mark.parametrize(("build", "name", "formula"), [row[1:] for row in HAND], ids=[row[0] for row in HAND])
def test_a_law_is_its_formula(build: Callable[[], Block], name: str, formula: Callable[[P], Tensor]) -> None:
    """Value, gradient, rate and both terms of a step, all from the hand-written formula and autograd."""
    block, generator = build_at_generic_point(_Case("oracle", build))
    law = block.laws().named(name)
    params = {n: p.detach() for n, p in block.named_parameters()}
    assert_close(value(law, params), formula(params))

    weight = torch.randn(law.value_shape, generator=generator, dtype=F64)
    leaves = {n: p.clone().requires_grad_() for n, p in params.items()}
    expected = torch.autograd.grad((weight * formula(leaves)).sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
    seen = gradient(law, params, weight)
    for n, grad in zip(leaves, expected, strict=True):
        assert_close(seen.get(n, torch.zeros_like(grad)), grad)

    grads = pull_back(block, draw_inputs(block, 5, generator, F64), generator)
    full = {n: grads.get(n, torch.zeros_like(p)) for n, p in params.items()}
    jacobian = torch.func.jacrev(formula)(params)
    assert_close(rate(law, params, grads), sum(((jacobian[n] * full[n]).flatten(len(law.value_shape)).sum(-1) for n in params), torch.zeros(())))

    update = {n: torch.randn(p.shape, generator=generator, dtype=F64) for n, p in params.items()}
    first, second = step_terms(law, params, update)
    assert_close(first + second, formula({n: p + update[n] for n, p in params.items()}) - formula(params))
