"""Discovery without knowledge: every law that is a sum of squares and entries is in the catalogue's list, and no other.

For unknown coefficients a and b, h(θ) = Σ (a_k θ_k²/2 + b_k θ_k) is conserved exactly when Σ (a_k θ_k + b_k) g_k = 0 for
every gradient g at every θ. Each sample at its own θ gives one linear equation; the null space holds every law of this
shape: `rescale`, `rotary`, `scale`, `translation`, and the diagonal of `general_linear`. Its dimension is compared with the
span of the catalogue's laws. Nothing is shared with the code under test but the models and the laws' gradients.
"""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from cases import RANK_GAP, draw_inputs, pull_back
from torch import Tensor

from conserved.catalog import (
    Attention,
    BatchNormBlock,
    Block,
    ConvolutionBlock,
    Decoder,
    FeedForward,
    GatedLinearUnit,
    InputConvexNetwork,
    LayerScale,
    LinearNetwork,
    LoRA,
    MatrixFactorization,
    MixtureOfExperts,
    NormalizedLinear,
    ReLUNetwork,
    SoftmaxClassifier,
    TransformerConfig,
    VisionTransformer,
)
from conserved.law import Law, LawSet, gradient
from conserved.symmetry import Symmetry

F64 = torch.float64
_attention = partial(Attention, dim=2, heads=2, head_dim=4, tokens=4)
_moe = partial(MixtureOfExperts, dim=2, hidden=2, out=2, experts=3)
_TINY = {"vocab": 3, "dim": 3, "heads": 1, "head_dim": 2, "hidden": 2, "tokens": 3, "layers": 1, "eps": 0.0}
_VIT = _TINY | {"channels": 1, "image": 4, "patch": 2, "classes": 3}


def _decoder(**options: object) -> Block:
    return Decoder(TransformerConfig(**(_TINY | options)))  # type: ignore[arg-type]


def _vision(**options: object) -> Block:
    return VisionTransformer(TransformerConfig(**(_VIT | options)))  # type: ignore[arg-type]


BLOCKS: dict[str, Callable[[], Block]] = {
    "linear": partial(LinearNetwork, (2, 3, 2), bias=True),
    "linear, wide": partial(LinearNetwork, (1, 3, 1)),
    "relu": partial(ReLUNetwork, (2, 3, 2, 2), bias=True),
    "nmf": partial(MatrixFactorization, 3, 2, rank=2),
    "nmf, wide": partial(MatrixFactorization, 1, 2, rank=4),
    "icnn": partial(InputConvexNetwork, 2, 3, 2),
    "conv": partial(ConvolutionBlock, 1, 2, 3, skip=True),
    "gelu": partial(FeedForward, 2, 3, 2, "gelu", bias=True),
    "tanh": partial(FeedForward, 2, 3, 2, "tanh", bias=True),
    "swiglu": partial(GatedLinearUnit, 2, 3, 2, "silu", bias=True),
    "reglu": partial(GatedLinearUnit, 2, 3, 2, "relu", bias=True),
    "bilinear": partial(GatedLinearUnit, 2, 3, 2, "identity"),
    "mha": _attention,
    "mha, bias": partial(_attention, bias=True),
    "mha, bias, causal, alibi": partial(_attention, bias=True, causal=True, position="alibi"),
    "mha, bias, soft cap": partial(_attention, bias=True, soft_cap=2.0),
    "mha, learned": partial(_attention, position="learned"),
    "rope": partial(_attention, position="rope"),
    "rope, interleaved, bias": partial(_attention, position="rope", interleaved=True, bias=True),
    "rope, partial": partial(_attention, position="rope", rotary_dim=2),
    "rope, partial, bias": partial(_attention, position="rope", rotary_dim=2, bias=True),
    "gqa": partial(_attention, heads=4, kv_heads=2, position="rope"),
    "mqa, bias": partial(_attention, heads=3, kv_heads=1, bias=True),
    "qk norm": partial(_attention, qk_norm=True, eps=0.0),
    "qk norm, rope, bias": partial(_attention, qk_norm=True, eps=0.0, position="rope", bias=True),
    "moe": partial(_moe, router_bias=True),
    "moe, z-loss": partial(_moe, z_loss=True),
    "moe, top 2, load balancing": partial(_moe, top_k=2, load_balancing=True),
    "moe, sigmoid": partial(_moe, gate="sigmoid", router_bias=True),
    "moe, sigmoid, top 2": partial(_moe, gate="sigmoid", top_k=2),
    "moe, top 1": partial(_moe, top_k=1),
    "moe, top 1 renormalised": partial(_moe, top_k=1, renormalize=True),
    "moe, top 1 renormalised, load balancing": partial(_moe, top_k=1, renormalize=True, load_balancing=True, router_bias=True),
    "moe, top 1 sigmoid, load balancing": partial(_moe, top_k=1, gate="sigmoid", load_balancing=True),
    "moe, top 1 sigmoid, load balancing, z-loss": partial(_moe, top_k=1, gate="sigmoid", load_balancing=True, z_loss=True),
    "rms norm": partial(NormalizedLinear, 3, (2, 1)),
    "layer norm": partial(NormalizedLinear, 3, (2, 2), "layer", offset=1.0),
    "layer scale": partial(LayerScale, 3, 2),
    "batch norm": partial(BatchNormBlock, 1, 2, eps=0.0),
    "lora": partial(LoRA, 3, 2, 2),
    "classifier": SoftmaxClassifier,
    "llama": partial(_decoder, kv_heads=1),
    "llama, tied": partial(_decoder, tied=True),
    "qwen3": partial(_decoder, qk_norm=True),
    "gpt2": partial(_decoder, norm="layer", position="learned", mlp=("gelu",), bias=True),
    "gpt2, tied": partial(_decoder, norm="layer", position="learned", mlp=("gelu",), bias=True, tied=True),
    "layer norm, rope, tied": partial(_decoder, norm="layer", tied=True),
    "layer norm, sinusoidal, tied": partial(_decoder, norm="layer", position="sinusoidal", tied=True),
    "layer scale, offset": partial(_decoder, layer_scale=True, norm_offset=1.0, bias=True, position="alibi"),
    "mixed": partial(_decoder, layers=2, mlp=("moe", "swiglu"), experts=2, position="none"),
    "vit": partial(_vision, norm="layer", position="learned", layers=2),
    "vit, one layer": partial(_vision, position="learned"),
}


def _flatten(tensors: dict[str, Tensor], like: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensors.get(name, torch.zeros_like(p)).detach().flatten() for name, p in like.items()])


def equations(block: Block, laws: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows (θ ⊙ g, g), one for each of many random θ, and which entries of θ ever get a gradient.

    There are ten more rows than unknowns that `laws` laws leave free.
    """
    generator = torch.Generator().manual_seed(seed)
    params = {name: p for name, p in block.named_parameters() if p.requires_grad}
    size = sum(p.numel() for p in params.values())
    rows = []
    for _ in range(2 * size - laws + 10):
        with torch.no_grad():
            for p in params.values():
                p.copy_(0.7 * torch.randn(p.shape, generator=generator, dtype=F64))
        g = _flatten(pull_back(block, draw_inputs(block, 6, generator, F64), generator), params)
        row = torch.cat((_flatten(dict(params), params) * g, g))
        rows.append(row / row.norm().clamp(min=torch.finfo(F64).tiny))
    matrix = torch.stack(rows)
    moved = matrix[:, size:].abs().amax(0) > RANK_GAP
    return matrix, moved


def coefficients(laws: LawSet, params: dict[str, Tensor]) -> Tensor:
    """Rows (a, b) of every diagonal component of every law: its gradient is a ⊙ θ + b."""
    zeros = {name: torch.zeros_like(p) for name, p in params.items()}
    ones = {name: torch.ones_like(p) for name, p in params.items()}
    rows = [torch.zeros(2 * sum(p.numel() for p in params.values()), dtype=F64)]
    for law in laws:
        for weight in diagonal_components(law):
            b = _flatten(gradient(law, zeros, weight), params)
            rows.append(torch.cat((_flatten(gradient(law, ones, weight), params) - b, b)))
    return torch.stack(rows)


def diagonal_components(law: Law) -> list[Tensor]:
    """Weights that pick one number each: the entries of a vector, the diagonal of a matrix."""
    units = torch.eye(torch.Size(law.kept_sizes).numel(), dtype=F64).reshape(-1, *law.kept_sizes)
    return list(torch.diag_embed(units) if law.symmetry is Symmetry.GENERAL_LINEAR else units)


def rank(matrix: Tensor) -> int:
    """Rank after scaling the columns, with the gap of the case table."""
    norms = matrix.norm(dim=0)
    values = torch.linalg.svdvals(matrix / torch.where(norms > 0, norms, 1))
    return int((values > RANK_GAP * values[:1]).sum())


@pytest.mark.parametrize("name", BLOCKS)
def test_the_list_is_complete_for_sums_of_squares_and_entries(name: str) -> None:
    """As many laws as the null space has dimensions, and every silent entry is a law of its own or reported as unused."""
    torch.manual_seed(0)
    block = BLOCKS[name]().double()
    params = {n: p.detach() for n, p in block.named_parameters() if p.requires_grad}
    laws = block.laws()
    claimed = coefficients(laws, params)
    matrix, moved = equations(block, rank(claimed), seed=1)
    columns = torch.cat((moved, moved))
    found = int(columns.sum()) - rank(matrix[:, columns])
    assert found == rank(claimed[:, columns]), "laws in the null space, laws in the list"
    reported = {a.where for a in laws.absences if "no gradient" in a.reason}
    unused = torch.cat([torch.full((p.numel(),), n in reported or (n == "r" and "W" in reported)) for n, p in params.items()])
    silent = ~moved & ~unused
    linear = claimed[:, len(moved) :][:, silent]
    assert int(torch.linalg.matrix_rank(linear)) == int(silent.sum()), "entries without any gradient, laws that say so"


def test_a_missing_law_is_noticed() -> None:
    """The comparison can fail: without one of its laws the list is too short."""
    torch.manual_seed(0)
    block = GatedLinearUnit(2, 3, 2, "relu").double()
    matrix, moved = equations(block, 0, seed=1)
    params = {n: p.detach() for n, p in block.named_parameters()}
    assert bool(moved.all())
    found = matrix.shape[1] - rank(matrix)
    assert found == rank(coefficients(block.laws(), params)) == 6
    assert rank(coefficients(block.laws()[:1], params)) == 3
