"""Every law of every case holds at a generic point, every perturbed one is rejected, and the counts are ranks."""

from functools import partial

import pytest
import torch
from cases import APPROXIMATE_PER_EPS, CASES, CONTROL_DRAWS, DTYPES, IN_PROPORTION, Case, eps_of, sample, worst_residual
from perturb import wrong_laws

from conserved.catalog import Attention, BatchNormBlock, Block, Decoder, Statement, TransformerConfig
from conserved.law import gradient_rank, independent_count, residual
from conserved.tolerance import CONTROL_RESIDUAL, residual_bound

ALL = [pytest.param(case, id=case.name) for case in CASES]
F64 = torch.float64

LAWLESS = {
    "linear": ("dims=3x2]", "dims=3x2,"),  # no hidden layer
    "relu": ("dims=3x2]",),
    "ffn": ("=gelu", "=silu", "=tanh", "=sigmoid"),  # Theorem 4.1
}
"""Cases without any law, by kind and part of the name: everything else must have one."""


def is_lawless(case: Case) -> bool:
    """Whether the case is listed as one without laws."""
    return any(part in case.name for part in LAWLESS.get(case.name.split("[")[0], ()))


def test_names_of_cases_are_unique() -> None:
    """An id says which case failed."""
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", ALL)
def test_there_are_laws_where_expected(case: Case) -> None:
    """A block without laws says why, unless there is no hidden space at all."""
    block = sample(case, F64).block
    laws = block.laws()
    assert bool(len(laws)) is not is_lawless(case)
    if case.name.startswith("ffn") and not len(laws):
        assert "not homogeneous" in laws.absences[0].reason
    assert laws == block.laws()


@pytest.mark.parametrize("case", ALL)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_laws_hold(case: Case, dtype: torch.dtype) -> None:
    """Exact laws up to rounding, approximate ones up to a multiple of eps; every component is evaluated."""
    at = sample(case, dtype)
    eps = eps_of(at.block)
    for law in at.laws:
        components = residual(law, at.params, at.grads)
        assert not components.isnan().any(), f"{law.name}: a component without any gradient"
        seen = worst_residual(case, law, dtype)
        assert seen is not None, f"{law.name}: not evaluated"
        if law.exact:
            assert seen <= residual_bound(dtype), law
        else:
            assert eps > 0, f"{law.name} is called approximate without an eps"
            assert f"eps = {eps:g}" in law.reason
            assert seen <= residual_bound(dtype) + APPROXIMATE_PER_EPS * eps, law


@pytest.mark.parametrize("case", ALL)
def test_wrong_laws_are_rejected(case: Case) -> None:
    """For every law: one wrong sign, one missing term, one wrong axis or pair or symmetry."""
    for law in sample(case, F64).laws:
        names = []
        for name, wrong in wrong_laws(law):
            names.append(name)
            seen = 0.0
            for draw in range(CONTROL_DRAWS):
                seen = max(seen, worst_residual(case, wrong, F64, draw) or 0.0)
                if seen >= CONTROL_RESIDUAL:
                    break
            assert seen >= CONTROL_RESIDUAL, f"{law.name}, {name}: accepted with residual {seen:.1e}"
        assert names, f"{law.name}: no perturbation applies"


@pytest.mark.parametrize("case", ALL)
def test_independent_count_is_a_rank(case: Case) -> None:
    """The closed form equals the rank of the laws' gradients at a generic point."""
    at = sample(case, F64)
    assert independent_count(at.laws) == gradient_rank(at.laws, at.params)


@pytest.mark.parametrize("case", [p for p in ALL if "eps=0.0" in p.id])
def test_without_eps_all_laws_are_exact(case: Case) -> None:
    """An eps of zero leaves no approximate law."""
    assert all(law.exact and not law.reason for law in sample(case, F64).laws)


APPROXIMATE = {
    "qk_norm": partial(Attention, qk_norm=True, position="rope", bias=True),
    "batch_norm": BatchNormBlock,
}


@pytest.mark.parametrize("name", [*APPROXIMATE, "stream_scale"])
def test_an_approximate_law_is_broken_in_proportion_to_eps(name: str) -> None:
    """A hundred times the eps gives about a hundred times the residual: eps is all that breaks the law."""
    build = APPROXIMATE.get(name, lambda eps: Decoder(TransformerConfig(eps=eps, norm="layer", position="learned", bias=True)))
    sizes = []
    for eps in (1e-6, 1e-4):
        case = Case(name, partial(build, eps=eps))
        laws = sample(case, F64).laws.select(exact=False)
        assert len(laws)
        sizes.append([worst_residual(case, law, F64) for law in laws])
    for small, large in zip(*sizes, strict=True):
        assert small is not None
        assert large is not None
        assert small > residual_bound(F64)
        assert 1 / IN_PROPORTION < large / small / 100 < IN_PROPORTION


@pytest.mark.parametrize("case", ALL)
def test_statement_and_example(case: Case) -> None:
    """Every block says what is claimed and by whom, and its example fits its forward."""
    block = sample(case, F64).block
    assert isinstance(block, Block)
    statement = block.statement
    assert isinstance(statement, Statement)
    assert all((statement.theorem, statement.source, statement.conditions, statement.completeness))
    generators = [torch.Generator().manual_seed(7) for _ in range(2)]
    first, second = (block.example(3, generator) for generator in generators)
    assert all(torch.equal(a, b) and len(a) == 3 for a, b in zip(first, second, strict=True))
    if "complete:" in statement.completeness:
        assert not len(block.laws())
