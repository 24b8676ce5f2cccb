r"""What one asks of a law: value, gradient, rate, residual, step terms.

Each function takes a `Law` (and returns a tensor) or a `LawSet` (and returns a mapping from law
names to tensors), and a mapping from parameter names to tensors. All layers of a family are
evaluated together. See `conserved.law.evaluate` for precision and cost.
"""

from collections.abc import Mapping
from typing import overload

import torch
from torch import Tensor

from conserved.errors import NonFiniteError, ShapeMismatchError
from conserved.law.evaluate import FIRST, MAGNITUDE, SECOND, VALUE, Evaluator, Tensors, eager, find_tensor
from conserved.law.law import Law
from conserved.law.lawset import LawSet


def _as_set(laws: Law | LawSet) -> LawSet:
    return LawSet((laws,)) if isinstance(laws, Law) else laws


@torch.no_grad()
def _result(laws: Law | LawSet, values: dict[str, Tensor], *inputs: Tensors | None) -> Tensor | dict[str, Tensor]:
    _require_finite(_as_set(laws), values, inputs)
    return values[laws.name] if isinstance(laws, Law) else values


def _require_finite(laws: LawSet, values: Mapping[str, Tensor], inputs: tuple[Tensors | None, ...]) -> None:
    """Raise for NaN or infinity, naming the tensor at fault; look at inputs only if a result is not finite."""
    if torch.compiler.is_compiling() or all(bool(torch.isfinite(value).all()) for value in values.values()):
        return
    for law in laws:
        for term in (*law.terms, *law.reference):
            for tensors in inputs:
                tensor = None if tensors is None else tensors.get(term.parameter)
                if tensor is not None and not bool(torch.isfinite(tensor).all()):
                    raise NonFiniteError(
                        f"{term.parameter!r} holds NaN or infinity, so law {law.name!r} has no value; go back to the step before the one that made it"
                    )
    raise NonFiniteError("a law's value overflows although all its tensors are finite; pass the tensors as float64")


@overload
def value(laws: Law, params: Tensors) -> Tensor: ...
@overload
def value(laws: LawSet, params: Tensors) -> dict[str, Tensor]: ...
@eager
def value(laws: Law | LawSet, params: Tensors) -> Tensor | dict[str, Tensor]:
    """The conserved quantity h(θ).

    Args:
        laws: a law or a set of laws.
        params: parameter tensors by name.

    Returns:
        A tensor of shape `law.value_shape`, or one for each law by name.

    Raises:
        MissingParameterError: a parameter is not in the mapping.
        ShapeMismatchError: a parameter has another shape than the law was written for.
        NonFiniteError: a parameter holds NaN or infinity.

    Example:
        >>> from conserved import Law, Symmetry, Term
        >>> law = Law("u", "linear", "", Symmetry.RESCALE,
        ...     (Term("U", (2, 1), "i x"), Term("V", (1, 2), "o i", -1)), index="i")
        >>> value(law, {"U": torch.tensor([[3.], [0.]]), "V": torch.tensor([[1., 2.]])})
        tensor([ 8., -4.])
    """
    return _result(laws, Evaluator(_as_set(laws))(params, wanted=(VALUE,)).of(VALUE), params)


@overload
def rate(laws: Law, params: Tensors, grads: Tensors) -> Tensor: ...
@overload
def rate(laws: LawSet, params: Tensors, grads: Tensors) -> dict[str, Tensor]: ...
@eager
def rate(laws: Law | LawSet, params: Tensors, grads: Tensors) -> Tensor | dict[str, Tensor]:
    """The rate ⟨∇h(θ), g⟩ for given gradients: zero for every gradient if h is a law.

    Under gradient flow dh/dt = −rate. Gradients that are None or missing count as zero.
    Arguments, shapes and errors as in `value`.
    """
    return _result(laws, Evaluator(_as_set(laws))(params, grads, (FIRST,)).of(FIRST), params, grads)


@overload
def residual(laws: Law, params: Tensors, grads: Tensors) -> Tensor: ...
@overload
def residual(laws: LawSet, params: Tensors, grads: Tensors) -> dict[str, Tensor]: ...
@eager
def residual(laws: Law | LawSet, params: Tensors, grads: Tensors) -> Tensor | dict[str, Tensor]:
    r"""The scale-free defect of the identity, one number for each component of the law.

        residual_i = |⟨∇h_i, g⟩| / max(m_i, mean_j m_j),    m_i = Σ |terms of ⟨∇h_i, g⟩|      in [0, 1]

    The sum of absolute terms is used instead of ‖∇h‖·‖g‖, so that a trace that cancels does not
    hide behind a large norm. A component whose terms almost vanish is compared with the average
    component of the law: an entry of a gradient is rounded relative to all that was added up in it,
    not to what is left. NaN marks a component whose terms are all zero: it is not evaluated and must
    not be read as passed (`worst`).

    Arguments, shapes and errors as in `rate`.
    """
    forms = Evaluator(_as_set(laws))(params, grads, (FIRST, MAGNITUDE))
    first, magnitude = forms.of(FIRST), forms.of(MAGNITUDE)
    _require_finite(_as_set(laws), magnitude, (params, grads))
    values = {name: relative(rate[None], magnitude[name][None])[0] for name, rate in first.items()}
    return values[laws.name] if isinstance(laws, Law) else values


def relative(first: Tensor, magnitude: Tensor) -> Tensor:
    """|first| over the magnitude of its component or the mean of its law, NaN where the magnitude is zero.

    Args:
        first: rates, laws along the first axis.
        magnitude: sums of absolute terms, same shape.
    """
    mean = magnitude.reshape(len(magnitude), -1).mean(1).reshape(-1, *[1] * (magnitude.ndim - 1))
    return torch.where(magnitude > 0, first.abs() / torch.maximum(magnitude, mean), torch.nan)


def worst(residuals: Tensor) -> float | None:
    """Largest evaluated component of a residual; None if no component could be evaluated."""
    seen = residuals[~residuals.isnan()]
    return float(seen.max()) if seen.numel() else None


@overload
def step_terms(laws: Law, params: Tensors, update: Tensors) -> tuple[Tensor, Tensor]: ...
@overload
def step_terms(laws: LawSet, params: Tensors, update: Tensors) -> dict[str, tuple[Tensor, Tensor]]: ...
@eager
def step_terms(laws: Law | LawSet, params: Tensors, update: Tensors) -> tuple[Tensor, Tensor] | dict[str, tuple[Tensor, Tensor]]:
    """The exact change of a law under θ → θ + Δ, as first and second order: (2B(θ, Δ), h(Δ)).

        h(θ + Δ) − h(θ) = 2B(θ, Δ) + B(Δ, Δ)        no remainder; (h(Δ), 0) for a linear law

    For plain SGD, Δ = −τg, the first is zero and the drift is τ²h(g) exactly.
    Arguments, shapes and errors as in `rate`, with the update Δ in place of the gradients.
    """
    forms = Evaluator(_as_set(laws))(params, update, (FIRST, SECOND))
    first, second = forms.of(FIRST), forms.of(SECOND)
    _require_finite(_as_set(laws), first, (params, update))
    pairs = {name: (first[name], second[name]) for name in first}
    return pairs[laws.name] if isinstance(laws, Law) else pairs


@eager
@torch.no_grad()
def gradient(law: Law, params: Tensors, weight: Tensor | None = None) -> dict[str, Tensor]:
    """The gradient of ⟨weight, h⟩ with respect to every parameter of the law.

        ∇⟨S, h⟩ = Σ_t c_t · 2 S (W_t + o_t)       quadratic, S symmetrised for a matrix law
        ∇⟨s, h⟩ = Σ_t c_t · s                     linear, repeated along the summed axes

    Args:
        law: the law.
        params: parameter tensors by name.
        weight: a tensor of shape `law.value_shape`; None weighs every component of a diagonal
            or linear law with 1 and takes the trace of a matrix law.

    Returns:
        A tensor of the parameter's shape for every parameter of the law, zero outside the
        slices that the law uses.

    Raises:
        MissingParameterError, ShapeMismatchError: as in `value`.
        ShapeMismatchError: the weight has another shape than the law's value.

    Example:
        >>> from conserved import Law, Symmetry, Term
        >>> law = Law("u", "linear", "", Symmetry.SCALE, (Term("U", (2, 1), "i x"),))
        >>> gradient(law, {"U": torch.tensor([[3.], [1.]])})["U"].tolist()
        [[6.0], [2.0]]
    """
    tensors = {term.parameter: find_tensor(params, term.parameter, term.shape, law) for term in law.terms}
    like = tensors[law.terms[0].parameter]
    dtype = torch.promote_types(like.dtype, torch.float32)
    weight = _default_weight(law, dtype, like.device) if weight is None else weight
    if tuple(weight.shape) != law.value_shape:
        raise ShapeMismatchError(f"weight has shape {tuple(weight.shape)}, the value of law {law.name!r} has {law.value_shape}; pass one of equal shape")
    out = {name: torch.zeros(tensor.shape, dtype=dtype, device=tensor.device) for name, tensor in tensors.items()}
    for term in law.terms:
        names = term.view.names
        order = [names.index(axis) for axis in law.kept]
        order += [i for i in range(len(names)) if i not in order]
        seen, target = (term.view(t).permute(order) for t in (tensors[term.parameter].to(dtype) + term.offset, out[term.parameter]))
        target.add_(_weighted(law, weight.to(target.device, dtype), seen), alpha=law.symmetry.degree * float(term.coefficient))
    return out


def _default_weight(law: Law, dtype: torch.dtype, device: torch.device) -> Tensor:
    if law.symmetry.is_matrix:
        return torch.eye(law.value_shape[-1], dtype=dtype, device=device).expand(law.value_shape)
    return torch.ones(law.value_shape, dtype=dtype, device=device)


def _weighted(law: Law, weight: Tensor, seen: Tensor) -> Tensor:
    """S W for a term seen with the kept axes first: a matrix product, a scaling, or the weight itself."""
    kept = len(law.kept)
    if law.symmetry.is_matrix:
        symmetric = (weight + weight.transpose(-1, -2)) / 2
        return (symmetric @ seen.reshape(*seen.shape[:kept], -1)).reshape(seen.shape)
    scale = weight.reshape(*weight.shape, *[1] * (seen.ndim - kept))
    return scale.expand(seen.shape) if law.symmetry.degree == 1 else scale * seen


@eager
@torch.no_grad()
def jacobian(laws: Law | LawSet, params: Tensors) -> Tensor:
    """The gradients of all scalar components of the laws, one row each, over all their parameters.

    A matrix law contributes its upper triangle. Dense: for small models only.

    Returns:
        Tensor of shape (components, entries of `laws.parameters` in order).
    """
    chosen = _as_set(laws)
    rows = []
    for law in chosen:
        for weight in _basis(law):
            part = gradient(law, params, weight)
            zero = {name: torch.zeros_like(params[name]) for name in chosen.parameters if name not in part}
            rows.append(torch.cat([(part | zero)[name].flatten().double() for name in chosen.parameters]))
    return torch.stack(rows) if rows else torch.zeros(0, 0, dtype=torch.float64)


def _basis(law: Law) -> list[Tensor]:
    shape = law.value_shape
    eye = torch.eye(max(1, torch.Size(shape).numel()), dtype=torch.float64).reshape(-1, *shape)
    if law.symmetry.is_matrix:
        keep = torch.triu(torch.ones(shape[-2:], dtype=torch.bool)).expand(shape).flatten()
        eye = eye[keep]
    return list(eye)
