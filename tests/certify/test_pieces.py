"""Fields that are analytic only in pieces, tables, and gradients that are cut: what a few random samples do not show is not called conserved."""

import pytest
import torch
from torch import nn

from conserved.certify import certify


class Net(nn.Module):
    """1 → width → 1, with any activation."""

    def __init__(self, activation, width=3):
        super().__init__()
        self.activation, self.first, self.last = activation, nn.Linear(1, width), nn.Linear(width, 1)

    def forward(self, x):
        return self.last(self.activation(self.first(x)))


class Table(nn.Module):
    """One token through a table and a matrix."""

    def __init__(self, tokens, dim, out):
        super().__init__()
        self.table, self.matrix = nn.Embedding(tokens, dim), nn.Linear(dim, out, bias=False)

    def forward(self, token):
        return self.matrix(self.table(token))


class Cut(nn.Module):
    """The second gradient field depends on b, although no derivative of torch says so; the two fields do not commute, and nothing is conserved."""

    def __init__(self, cut):
        super().__init__()
        self.cut = cut
        self.a, self.b, self.c = (nn.Parameter(torch.tensor(v)) for v in (1.125, 0.75, 0.5))

    def forward(self, x):
        return torch.stack((self.a + (self.b.detach() if self.cut else self.b) * self.c, self.b)) * x[:, 0]


HOMOGENEOUS = {
    "relu": nn.ReLU(),
    "where": lambda z: torch.where(z > 0, z, 0),
    "maximum": lambda z: torch.maximum(z, torch.zeros_like(z)),
    "clamp_min": lambda z: z.clamp_min(0),
    "leaky by minimum": lambda z: z.clamp_min(0) + 0.25 * torch.minimum(z, torch.zeros_like(z)),
}
BOUNDED = {"relu6": nn.ReLU6(), "softshrink": nn.Softshrink(), "hardtanh": nn.Hardtanh(), "shifted": lambda z: z.clamp_min(0.5)}


@pytest.mark.parametrize("activation", HOMOGENEOUS.values(), ids=HOMOGENEOUS)
def test_one_law_for_each_unit_however_the_hinge_is_written(activation):
    found = certify(Net(activation), (torch.zeros(1, 1),))
    assert (found.independent_laws, found.verdict, found.unmoved) == (3, "numerical", ()), found.reason


@pytest.mark.parametrize("activation", BOUNDED.values(), ids=BOUNDED)
def test_no_law_where_units_saturate_or_have_a_threshold(activation):
    found = certify(Net(activation), (torch.zeros(1, 1),))
    assert found.independent_laws in (0, None), found.reason


@pytest.mark.parametrize("seed", range(3))
def test_units_that_are_nearly_always_off_are_not_left_out(seed):
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    nn.init.constant_(net[0].bias, -4.0)
    found = certify(net, (torch.zeros(1, 2),), seed=seed)
    assert found.independent_laws in (3, None)
    assert found.unmoved == ()


@pytest.mark.parametrize(("tokens", "dim", "out"), [(1, 1, 1), (40, 2, 3), (100, 1, 1), (100, 2, 3)])
def test_every_row_of_a_table_is_met(tokens, dim, out):
    """E and V of one linear network with `tokens` inputs: EᵀE − VVᵀ, dim (dim + 1)/2 numbers, fewer where the ranks are smaller."""
    found = certify(Table(tokens, dim, out), (torch.tensor([tokens - 1]),))
    assert (found.independent_laws, found.verdict) == (dim * (dim + 1) // 2, "numerical")


@pytest.mark.parametrize("arithmetic", ["float64", "ball"])
def test_a_gradient_that_is_cut_gives_no_count(arithmetic):
    found = certify(Cut(True), (torch.zeros(1, 1),), arithmetic=arithmetic)
    assert (found.independent_laws, found.verdict) == (None, "undecided")
    assert "detach" in found.reason


def test_the_same_function_uncut_has_a_count():
    assert certify(Cut(False), (torch.zeros(1, 1),)).independent_laws is not None


def test_an_attribute_called_positive_is_the_modules_own():
    net = nn.Linear(2, 2)
    net.positive = True
    assert certify(net, (torch.zeros(1, 2),)).independent_laws == 0
