"""How many laws certification finds: the certified table, random networks against closed formulas, every small block of the catalogue."""

import random
from itertools import pairwise

import pytest
import torch
from torch.func import jacrev

from conserved.catalog import BLOCKS, FeedForward, LinearNetwork, ReLUNetwork
from conserved.certify import certify, certify_block

GAP = 1e6
"""Least factor between the singular values that decide a rank."""

# block, options, parameters, rank of W, dimension of Lie, laws
TABLE = {
    "linear-3-2-3": ("linear", {"dims": (3, 2, 3)}, 12, 8, 9, 3),
    "linear-2-4-3": ("linear", {"dims": (2, 4, 3)}, 20, 6, 10, 10),
    "gelu-3-3-2": ("gelu", {"dim": 3, "hidden": 3, "out": 2}, 15, 15, 15, 0),
    "silu-3-3-2": ("silu", {"dim": 3, "hidden": 3, "out": 2}, 15, 15, 15, 0),
    "tanh-3-3-2": ("tanh", {"dim": 3, "hidden": 3, "out": 2}, 15, 15, 15, 0),
    "swiglu-3-4-2": ("swiglu", {"dim": 3, "hidden": 4, "out": 2}, 32, 28, 28, 4),
    "swiglu-16-32-16": ("swiglu", {"dim": 16, "hidden": 32, "out": 16}, 1536, 1504, 1504, 32),
    "mha-3-2x2": ("mha", {"dim": 3, "heads": 2, "head_dim": 2}, 48, 32, 36, 12),
    "mha-16-4x4": ("mha", {"dim": 16, "heads": 4, "head_dim": 4}, 1024, 896, 944, 80),
    "rope-3-1x2": ("rope", {"dim": 3, "heads": 1, "head_dim": 2}, 24, 18, 20, 4),
    "rope-3-1x4": ("rope", {"dim": 3, "heads": 1, "head_dim": 4}, 48, 29, 36, 12),
    "moe-softmax-2-2x2": ("moe", {"dim": 2, "hidden": 2, "experts": 2}, 28, 22, 22, 6),
    "moe-sigmoid-2-2x2": ("sigmoid-moe", {"dim": 2, "hidden": 2, "experts": 2}, 28, 24, 24, 4),
}
LARGE = ("decoder", "vit", "layernorm-stream")
SMALL = [name for name in BLOCKS if name not in LARGE]


@pytest.mark.parametrize(("block", "options", "parameters", "span", "lie", "laws"), TABLE.values(), ids=TABLE)
def test_the_certified_table(block, options, parameters, span, lie, laws):
    found = certify_block(block, options)
    assert (found.parameters, found.rank_span, found.rank_lie, found.independent_laws) == (parameters, span, lie, laws)
    assert (found.known_laws, found.complete, found.verdict) == (laws, True, "numerical")
    assert found.gap >= GAP
    assert (found.flow, found.size, found.arithmetic, found.unmoved) == ("gradient", parameters, "float64", ())


@pytest.mark.parametrize("seed", [1, 2])
def test_the_count_does_not_depend_on_the_seed(seed):
    found = certify_block("rope", {"dim": 3, "heads": 1, "head_dim": 4}, seed=seed)
    assert (found.rank_span, found.rank_lie, found.independent_laws, found.complete) == (29, 36, 12, True)


def triangle(size):
    """Entries of a symmetric matrix."""
    return size * (size + 1) // 2


def linear_laws(widths):
    """Independent entries of the matrices Wₗ₊₁ᵀWₗ₊₁ − WₗWₗᵀ at a generic point, by hand.

    Each is symmetric, of the width of its layer. Their gradients satisfy a linear relation for each symmetric S on the part of the layer
    that neither neighbour reaches, Wₗᵀ S = 0 and Wₗ₊₁ S = 0, and no other ones: elsewhere WₗWₗᵀ and Wₗ₊₁ᵀWₗ₊₁ commute with multiples of 1
    alone, and the ends make these zero.
    """
    count = 0
    for before, width, after in zip(widths, widths[1:], widths[2:], strict=False):
        unreached = max(0, width - min(width, before) - min(width, after))
        count += triangle(width) - triangle(unreached)
    return count


@pytest.mark.parametrize(("inner", "n", "m"), [(2, 3, 3), (4, 2, 3), (5, 2, 2), (7, 2, 3), (3, 1, 5)])
def test_the_formula_is_that_of_the_paper_for_two_layers(inner, n, m):
    """Marcotte et al. 2023, on UVᵀ with r columns: dim Lie = (n+m)(n+m−1)/2 if n + m ≤ r, else (n+m)r − r(r+1)/2."""
    lie = (n + m) * (n + m - 1) // 2 if n + m <= inner else (n + m) * inner - triangle(inner)
    assert linear_laws((n, inner, m)) == (n + m) * inner - lie


@pytest.mark.parametrize("widths", [(3, 2, 4, 3), (2, 5, 5, 2), (2, 5, 2, 5, 2), (3, 2, 5, 2, 4)], ids=str)
def test_the_formula_is_the_rank_of_the_matrices_for_more_layers(widths, generator):
    weights = [torch.randn(after, before, generator=generator, dtype=torch.float64) for before, after in pairwise(widths)]

    def matrices(*weights):
        return torch.cat([(after.T @ after - before @ before.T).flatten() for before, after in pairwise(weights)])

    jacobian = torch.cat([part.flatten(1) for part in jacrev(matrices, argnums=tuple(range(len(weights))))(*weights)], 1)
    assert torch.linalg.matrix_rank(jacobian) == linear_laws(widths)


def random_widths(draw, largest):
    return tuple(draw.randint(2, largest) for _ in range(draw.randint(2, 4) + 1))


def test_fifty_random_linear_networks():
    draw = random.Random(0)
    networks = [random_widths(draw, 5) for _ in range(50)]
    assert {len(widths) - 1 for widths in networks} == {2, 3, 4}
    assert any(linear_laws(w) < sum(map(triangle, w[1:-1])) for w in networks)  # some have matrices whose entries depend on each other
    wrong = {}
    for number, widths in enumerate(networks):
        found = certify(LinearNetwork(widths), seed=number)
        if (found.independent_laws, found.complete, found.verdict) != (linear_laws(widths), True, "numerical") or found.gap < GAP:
            wrong[widths] = str(found)
    assert not wrong


@pytest.mark.parametrize("bias", [False, True], ids=["no-bias", "bias"])
def test_random_relu_networks(bias):
    """One law for each hidden unit. The benchmark takes 50 networks."""
    draw = random.Random(2 + bias)
    networks = [random_widths(draw, 9) for _ in range(4)]
    assert len({len(widths) for widths in networks}) > 1
    wrong = {}
    for number, widths in enumerate(networks):
        found = certify(ReLUNetwork(widths, bias=bias), seed=number)
        if (found.independent_laws, found.complete, found.verdict) != (sum(widths[1:-1]), True, "numerical") or found.gap < GAP:
            wrong[widths] = str(found)
    assert not wrong


@pytest.mark.parametrize("name", SMALL)
def test_the_catalogue_is_complete(name):
    found = certify_block(name)
    assert found.block == name
    assert (found.verdict, found.complete) == ("numerical", True)
    assert found.known_laws == found.independent_laws == found.size - found.rank_lie
    assert found.gap >= GAP


@pytest.mark.parametrize("name", ["swiglu", "mha", "moe"])
def test_the_account_says_which_parameters_take_part(name):
    """Ranks of the parts of the laws' gradients; those of SwiGLU do not touch B."""
    found = certify_block(name)
    account = {share.parameter: share for share in found.shares}
    taking_part = {parameter for parameter, share in account.items() if share.rank}
    assert taking_part == {"swiglu": {"A", "C"}, "mha": {"Q", "K", "V", "O"}, "moe": {"W", "A", "C"}}[name]
    assert sum(share.entries for share in account.values()) == found.parameters
    assert all(share.rank <= found.independent_laws for share in account.values())


def test_an_undecided_count_is_no_count():
    """Wide layers on one-dimensional inputs have no clear rank on real data in float64."""
    found = certify(FeedForward(1, 32, 1, "silu"), sampling="real")
    assert (found.verdict, found.independent_laws, found.complete) == ("undecided", None, None)
    assert found.gap < GAP
    assert "try" in found.reason
    assert found.to_json()["independent_laws"] is None
    assert "an undecided number of" in str(found)
