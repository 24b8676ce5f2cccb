"""Independent oracles: a law's numbers by dense einsum, and random laws to compare them on.

Nothing here uses the evaluation, the views or the plan of the library: the axes of a random law are single
letters, so its pattern is an einsum formula as it stands.
"""

from collections.abc import Mapping
from fractions import Fraction

import torch
from hypothesis import strategies as st
from torch import Tensor

from conserved.law import Law, Term
from conserved.symmetry import Symmetry


def naive_value(law: Law, params: Mapping[str, Tensor]) -> Tensor:
    """h(θ) with one einsum a term; differentiable."""
    kept = "".join((*law.batch, law.index or ""))
    total: Tensor | float = 0.0
    for term in law.terms:
        axes = term.axes.replace(" ", "")
        x = params[term.parameter] + term.offset
        if law.symmetry is Symmetry.TRANSLATION:
            part = torch.einsum(f"{axes}->{kept}", x)
        elif law.symmetry is Symmetry.GENERAL_LINEAR:
            part = torch.einsum(f"{axes},{axes.replace(kept[-1], 'Z')}->{kept}Z", x, x)
        else:
            part = torch.einsum(f"{axes},{axes}->{kept}", x, x)
        total = total + float(term.coefficient) * part
    assert isinstance(total, Tensor)
    return total


def naive_gradient(law: Law, params: Mapping[str, Tensor], weight: Tensor) -> dict[str, Tensor]:
    """∇⟨weight, h⟩ by autograd of the naive value."""
    leaves = {name: params[name].detach().clone().requires_grad_() for name in law.parameters}
    grads = torch.autograd.grad((weight * naive_value(law, leaves)).sum(), list(leaves.values()))
    return dict(zip(leaves, grads, strict=True))


def naive_rate(law: Law, params: Mapping[str, Tensor], x: Mapping[str, Tensor]) -> Tensor:
    """⟨∇h, x⟩ for every component, by the dense Jacobian of the naive value."""
    jacobian = torch.func.jacrev(lambda p: naive_value(law, p))({name: params[name].detach() for name in law.parameters})
    return sum(((jacobian[name] * x[name]).flatten(len(law.value_shape)).sum(-1) for name in law.parameters), start=torch.zeros(law.value_shape))


def naive_magnitude(law: Law, params: Mapping[str, Tensor], x: Mapping[str, Tensor]) -> Tensor:
    """Σ |terms of ⟨∇h, x⟩|: all entries, coefficients and reference legs taken absolute."""
    total: Tensor | float = 0.0
    for term in (*law.terms, *law.reference):
        theta = (params[term.parameter] + term.offset).abs()
        alone = Law("a", "a", "", law.symmetry, (Term(term.parameter, term.shape, term.axes, abs(term.coefficient)),), law.batch, law.index)
        total = total + naive_rate(alone, {term.parameter: theta}, {term.parameter: x[term.parameter].abs()})
    assert isinstance(total, Tensor)
    return total


_coefficients = st.one_of(st.integers(-3, 3).filter(bool), st.fractions(-2, 2, max_denominator=5).filter(bool))


@st.composite
def laws(draw: st.DrawFn) -> Law:
    """A random well-formed law whose axes are single letters; not conserved by anything."""
    symmetry = draw(st.sampled_from(Symmetry))
    sizes = {name: draw(st.integers(1, 3)) for name in "bcimno"}
    batch = tuple(draw(st.permutations("bc"))[: draw(st.integers(0, 2))])
    index = "i" if symmetry.has_index else None
    kept = batch if index is None else (*batch, index)

    def term(name: str) -> Term:
        contracted = draw(st.permutations("mno"))[: draw(st.integers(0, 2))]
        axes = draw(st.permutations((*kept, *contracted)))
        if not axes:
            axes = ["m"]
        coefficient: Fraction | int = draw(_coefficients)
        if isinstance(coefficient, Fraction) and coefficient.denominator == 1:
            coefficient = int(coefficient)
        return Term(name, tuple(sizes[a] for a in axes), " ".join(axes), coefficient, draw(st.sampled_from((0.0, 1.0, -0.5))))

    terms = tuple(term(f"p{i}") for i in range(draw(st.integers(1, 3))))
    reference = (term("r0"),) if draw(st.integers(0, 3)) == 0 else ()
    exact = draw(st.booleans())
    return Law("law", "family", draw(st.sampled_from(("", "layers.0"))), symmetry, terms, batch, index, reference, exact, "" if exact else "eps", "source")


def random_tensors(law: Law, seed: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Normal tensors for every leg of a law."""
    generator = torch.Generator().manual_seed(seed)
    return {t.parameter: torch.randn(t.shape, generator=generator, dtype=torch.float64).to(dtype) for t in (*law.terms, *law.reference)}
