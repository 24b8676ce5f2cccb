"""Value, gradient, rate, residual and step terms of random laws, against dense einsum and autograd."""

from fractions import Fraction

import pytest
import torch
from cases import EQUAL
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import laws, naive_gradient, naive_magnitude, naive_rate, naive_value, random_tensors
from torch import Tensor

from conserved.errors import MissingParameterError, NonFiniteError, ShapeMismatchError
from conserved.law import Law, LawSet, Term, gradient, jacobian, rate, residual, step_terms, value, worst
from conserved.symmetry import Symmetry

seeds = st.integers(0, 2**31)
F64 = torch.float64
NAN, INFINITY = float("nan"), float("inf")


def close(seen: Tensor, expected: Tensor, scale: Tensor | float = 1.0, dtype: torch.dtype = F64) -> bool:
    """Equal up to the table's tolerance, relative to a scale; NaN equals NaN."""
    assert seen.shape == expected.shape
    bound = EQUAL[dtype] * (torch.as_tensor(scale, dtype=F64).abs() + expected.abs().nan_to_num() + 1)
    both_nan = seen.isnan() & expected.isnan()
    return bool((both_nan | ((seen - expected).abs() <= bound)).all())


def test_close_rejects() -> None:
    """The comparator can fail."""
    one = torch.ones(2, dtype=F64)
    assert close(one, one + EQUAL[F64] / 2)
    assert not close(one, one + 10 * EQUAL[F64])
    assert not close(one, one * NAN)
    assert not close(one * NAN, one)
    assert close(one * NAN, one * NAN)


@settings(max_examples=150, deadline=None)
@given(laws(), seeds)
def test_value_is_the_dense_einsum(law: Law, seed: int) -> None:
    """h(θ) of any law."""
    params = random_tensors(law, seed)
    assert close(value(law, params), naive_value(law, params))


@settings(max_examples=100, deadline=None)
@given(laws(), seeds, st.booleans())
def test_gradient_is_that_of_autograd(law: Law, seed: int, weighted: bool) -> None:
    """∇⟨S, h⟩ for random S, and for the default weight."""
    params = random_tensors(law, seed)
    weight = torch.randn(law.value_shape, generator=torch.Generator().manual_seed(seed), dtype=F64) if weighted else None
    default = torch.eye(law.value_shape[-1], dtype=F64).expand(law.value_shape) if law.symmetry.is_matrix else torch.ones(law.value_shape, dtype=F64)
    seen, expected = gradient(law, params, weight), naive_gradient(law, params, default if weight is None else weight)
    assert set(seen) == set(law.parameters)
    for name in law.parameters:
        assert close(seen[name], expected[name]), name


@settings(max_examples=100, deadline=None)
@given(laws(), seeds)
def test_rate_and_residual(law: Law, seed: int) -> None:
    """The rate is ⟨autograd gradient, g⟩; the residual divides by the absolute terms, at least by their mean."""
    params, grads = random_tensors(law, seed), random_tensors(law, seed + 1)
    expected, magnitude = naive_rate(law, params, grads), naive_magnitude(law, params, grads)
    assert close(rate(law, params, grads), expected, magnitude)
    ratio = torch.where(magnitude > 0, expected.abs() / magnitude.clamp(min=float(magnitude.mean())), NAN)
    seen = residual(law, params, grads)
    assert close(seen, ratio)
    assert bool(((seen >= 0) & (seen <= 1 + EQUAL[F64]) | seen.isnan()).all())


@settings(max_examples=100, deadline=None)
@given(laws(), seeds)
def test_a_step_has_two_terms_and_no_remainder(law: Law, seed: int) -> None:
    """h(θ + Δ) − h(θ) = first + second; the second of a linear law is zero."""
    params, update = random_tensors(law, seed), random_tensors(law, seed + 1)
    first, second = step_terms(law, params, update)
    after = naive_value(law, {name: params[name] + update[name] for name in params})
    assert close(first + second, after - naive_value(law, params))
    assert close(first, naive_rate(law, params, update))
    if law.symmetry.degree == 1:
        assert bool((second == 0).all())


@settings(max_examples=40, deadline=None)
@given(laws(), seeds)
def test_jacobian_rows_are_gradients_of_components(law: Law, seed: int) -> None:
    """One row for each independent component (upper triangle of a matrix law), all parameters side by side."""
    params = random_tensors(law, seed)
    names = law.parameters
    whole = torch.func.jacrev(lambda p: naive_value(law, p))({name: params[name] for name in names})
    n = torch.Size(law.value_shape).numel()
    dense = torch.cat([whole[name].reshape(n, -1) for name in names], dim=1)
    if law.symmetry.is_matrix:
        i, j = torch.triu_indices(*law.value_shape[-2:])
        blocks = dense.reshape(-1, *law.value_shape[-2:], dense.shape[-1])
        dense = blocks[:, i, j].reshape(-1, dense.shape[-1])
    assert close(jacobian(law, params), dense)


def test_sgd_drifts_by_the_square_of_the_rate() -> None:
    """A worked example by hand: Δ = −τg with a vanishing identity leaves τ²h(g)."""
    law = Law("u", "linear", "", Symmetry.RESCALE, (Term("u", (1, 1), "i x"), Term("v", (1, 1), "o i", -1)), index="i")
    params = {"u": torch.tensor([[3.0]]), "v": torch.tensor([[2.0]])}
    grads = {"u": torch.tensor([[2.0]]), "v": torch.tensor([[3.0]])}  # of the product u·v
    assert value(law, params).tolist() == [5.0]
    assert rate(law, params, grads).tolist() == [0.0]
    first, second = step_terms(law, params, {name: -0.5 * g for name, g in grads.items()})
    assert (first.tolist(), second.tolist()) == ([0.0], [0.25 * (4 - 9)])


def test_one_parameter_in_two_terms() -> None:
    """A tied square weight that produces and consumes the same index: both views are read."""
    law = Law("tied", "linear", "", Symmetry.RESCALE, (Term("W", (2, 2), "i m"), Term("W", (2, 2), "o i", Fraction(-1, 2))), index="i")
    w = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=F64)
    assert value(law, {"W": w}).tolist() == [5 - 10 / 2, 25 - 20 / 2]
    leaf = w.clone().requires_grad_()
    (expected,) = torch.autograd.grad((leaf.square().sum(1) - leaf.square().sum(0) / 2).sum(), leaf)
    assert close(gradient(law, {"W": w})["W"], expected)


def test_slices_of_one_fused_parameter() -> None:
    """Two cuts of one weight make two legs; the gradient is zero outside of them."""
    terms = (Term("W", (6, 2), "(h=2 i)[0:4] d"), Term("W", (6, 2), "i[4:6] d", -1))
    law = Law("fused", "qk", "", Symmetry.GENERAL_LINEAR, (terms[0],), ("h",), "i")
    w = torch.arange(12, dtype=F64).reshape(6, 2)
    heads = w[:4].reshape(2, 2, 2)
    assert close(value(law, {"W": w}), torch.einsum("hid,hjd->hij", heads, heads))
    assert gradient(law, {"W": w})["W"][4:].abs().sum() == 0
    part = Law("fused2", "qk", "", Symmetry.RESCALE, (Term("W", (6, 2), "i[0:2] d"), terms[1]), (), "i")
    assert close(value(part, {"W": w}), w[:2].square().sum(1) - w[4:].square().sum(1))


WIDE = Law("wide", "t", "", Symmetry.RESCALE, (Term("A", (2, 3), "o i"), Term("b", (3,), "i", -1)), index="i", reference=(Term("R", (3,), "i"),))


def _wide(**changed: Tensor) -> dict[str, Tensor]:
    return {"A": torch.ones(2, 3), "b": torch.ones(3), "R": torch.ones(3)} | changed


def test_a_component_without_terms_is_not_evaluated() -> None:
    """NaN, not zero, where nothing could be compared; `worst` skips it, and is None if nothing is left."""
    grads = {"A": torch.tensor([[1.0, 0.0, 1.0], [1.0, 0.0, 1.0]]), "b": torch.tensor([2.0, 0.0, 0.0]), "R": torch.zeros(3)}
    seen = residual(WIDE, _wide(), grads)
    assert seen.isnan().tolist() == [False, True, False]
    assert seen[0] == 0
    assert seen[2] == 1
    assert worst(seen) == pytest.approx(1.0)
    nothing = residual(WIDE, _wide(), {})
    assert nothing.isnan().all()
    assert worst(nothing) is None
    assert worst(torch.zeros(0)) is None
    assert residual(LawSet((WIDE,)), _wide(), {})["wide"].isnan().all()


def test_a_reference_leg_sets_the_scale_only() -> None:
    """It enters the residual's denominator, never the value, rate or step."""
    grads = {"A": torch.zeros(2, 3), "b": torch.tensor([1.0, 1.0, 1.0]), "R": torch.tensor([3.0, 3.0, 3.0])}
    assert residual(WIDE, _wide(), grads).tolist() == [0.25] * 3
    assert value(WIDE, _wide(R=torch.full((3,), 9.0))).tolist() == [1.0] * 3
    assert rate(WIDE, _wide(), {"R": torch.ones(3)}).tolist() == [0.0] * 3


def test_a_tiny_component_is_compared_with_the_average_one() -> None:
    """A component far below the mean of its law is not blown up by its own small magnitude."""
    tiny = 1e-20
    grads = {"A": torch.tensor([[1.0, tiny, 1.0], [1.0, 0.0, 1.0]], dtype=F64), "b": torch.tensor([2.0, 0.0, 2.0], dtype=F64), "R": torch.zeros(3, dtype=F64)}
    seen = residual(WIDE, {name: t.to(F64) for name, t in _wide().items()}, grads)
    assert 0 < float(seen[1]) < 10 * tiny


# --- errors ---

CALLS = {
    "value": lambda law, p, g: value(law, p),
    "rate": rate,
    "residual": residual,
    "step_terms": step_terms,
    "gradient": lambda law, p, g: gradient(law, p),
}
VECTOR_CALLS = [name for name in CALLS if name not in ("value", "gradient")]


@pytest.mark.parametrize("call", CALLS)
def test_a_missing_parameter(call: str) -> None:
    """Named, with what to pass; it is a KeyError whose text is readable."""
    params = _wide()
    del params["b"]
    with pytest.raises(MissingParameterError, match="needs the parameter 'b', which the mapping lacks; pass dict") as caught:
        CALLS[call](WIDE, params, _wide())
    assert isinstance(caught.value, KeyError)
    assert not str(caught.value).startswith('"')


def test_a_missing_parameter_in_a_stack_of_layers() -> None:
    """Also the second of several layers that are evaluated together is named."""
    laws = LawSet.of(WIDE.renamed(f"layers.{i}.") for i in range(3))
    params = {f"layers.{i}.{name}": t for i in range(3) for name, t in _wide().items() if (i, name) != (1, "b")}
    with pytest.raises(MissingParameterError, match=r"the parameter 'layers\.1\.b'"):
        value(laws, params)


@pytest.mark.parametrize("call", CALLS)
def test_a_parameter_of_another_shape(call: str) -> None:
    """Both shapes are named."""
    with pytest.raises(ShapeMismatchError, match=r"parameter 'A' has shape \(3, 2\), its laws were written for \(2, 3\); find the laws of this model anew"):
        CALLS[call](WIDE, _wide(A=torch.ones(3, 2)), _wide())


@pytest.mark.parametrize("call", VECTOR_CALLS)
def test_a_gradient_of_another_shape(call: str) -> None:
    """A gradient that would broadcast is refused, too."""
    for shape in ((3, 2), (3,), (1, 3), ()):
        with pytest.raises(ShapeMismatchError, match=r"gradient or update of 'A' has shape .*, the parameter \(2, 3\); pass one of equal shape"):
            CALLS[call](WIDE, _wide(), _wide(A=torch.ones(shape)))


@pytest.mark.parametrize("bad", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize("call", ["value", *VECTOR_CALLS])
def test_a_parameter_that_is_not_finite(call: str, bad: float) -> None:
    """The tensor at fault is named, with the law."""
    a = torch.ones(2, 3)
    a[1, 2] = bad
    with pytest.raises(NonFiniteError, match="'A' holds NaN or infinity, so law 'wide' has no value"):
        CALLS[call](WIDE, _wide(A=a), _wide())


@pytest.mark.parametrize("bad", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize("call", VECTOR_CALLS)
def test_a_gradient_that_is_not_finite(call: str, bad: float) -> None:
    """A gradient, too, in a law or a set of laws; one that no law uses does not matter."""
    b = torch.tensor([1.0, bad, 1.0])
    for law in (WIDE, LawSet((WIDE,))):
        with pytest.raises(NonFiniteError, match="'b' holds NaN or infinity"):
            CALLS[call](law, _wide(), _wide(b=b))
    CALLS[call](WIDE, _wide(), _wide(unused=b))


@pytest.mark.parametrize("call", ["value", *VECTOR_CALLS])
def test_overflow_of_finite_tensors(call: str) -> None:
    """Finite tensors whose squares overflow float32: float64 is advised, and works."""
    big = _wide(A=torch.full((2, 3), 1e30))
    with pytest.raises(NonFiniteError, match="overflows although all its tensors are finite; pass the tensors as float64"):
        CALLS[call](WIDE, big, big)
    double = {name: t.double() for name, t in big.items()}
    CALLS[call](WIDE, double, double)


def test_a_weight_of_another_shape() -> None:
    """`gradient` refuses it."""
    with pytest.raises(ShapeMismatchError, match=r"weight has shape \(2,\), the value of law 'wide' has \(3,\); pass one of equal shape"):
        gradient(WIDE, _wide(), torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradient_and_jacobian_take_any_dtype(dtype: torch.dtype) -> None:
    """A float64 weight on a matrix law of lower-precision parameters is no error."""
    law = Law("m", "linear", "", Symmetry.GENERAL_LINEAR, (Term("U", (3, 2), "i m"), Term("V", (4, 3), "o i", -1)), (), "i")
    params = random_tensors(law, 0, dtype)
    wide = {name: t.double() for name, t in params.items()}
    weight = torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=F64)
    seen, expected = gradient(law, params, weight), gradient(law, wide, weight)
    for name in params:
        assert close(seen[name].double(), expected[name], dtype=dtype)
    assert close(jacobian(law, params), jacobian(law, wide), dtype=dtype)
