"""Collecting the laws of a model that is built from catalogue blocks."""

import warnings
from collections import Counter

import torch
from torch import Tensor, nn

from conserved.catalog.block import Block
from conserved.errors import NoLawsError, ViolationError
from conserved.law import Absence, Law, LawSet, residual, worst
from conserved.tolerance import residual_bound


def find_laws(model: nn.Module, example_inputs: tuple[object, ...] | None = None) -> LawSet:
    """The conservation laws of a model.

    This version collects them from the catalogue blocks in the model: a model that is one block (an assembled
    transformer is one), or any module that holds blocks. Laws that touch a frozen parameter, or one that
    several blocks share, are left out and reported as absences.

    Args:
        model: the model.
        example_inputs: inputs of `model.forward`. If given, every exact law is checked by its residual on the
            gradients of a random linear function of the outputs.

    Returns:
        The laws, named by the path of their block.

    Raises:
        NoLawsError: the model has no parameters, or holds no catalogue block.
        ViolationError: an exact law fails on the example inputs.

    Example:
        >>> import conserved
        >>> conserved.find_laws(conserved.catalog.GatedLinearUnit(3, 4, 2)).independent_count
        4
    """
    if not any(True for _ in model.parameters()):
        raise NoLawsError(f"{type(model).__name__} has no parameters, so nothing can be conserved; pass a model with weights")
    blocks = _outermost_blocks(model)
    if not blocks:
        raise NoLawsError(
            f"{type(model).__name__} holds no block of conserved.catalog; laws of other modules are not derived in this version: "
            "build it from catalogue blocks or write Law values by hand"
        )
    names = _canonical_names(model)
    found = LawSet()
    for path, block in blocks:
        found = found + block.laws().renamed(path, names)
    shared = {name for name, number in Counter(names.values()).items() if number > 1}
    laws, absences = [], list(found.absences)
    for law in found:
        reason = _excluded(law, model, shared)
        if reason:
            absences.append(Absence(law.name, reason))
        else:
            laws.append(law)
    result = LawSet.of(laws, absences)
    if example_inputs is not None:
        verify(model, result, example_inputs)
    return result


def verify(model: nn.Module, laws: LawSet, example_inputs: tuple[object, ...]) -> None:
    """Check every exact law on the gradients of a random linear function of the model's outputs.

    Warns of laws that no gradient reaches: they are not checked.

    Raises:
        ViolationError: a law's residual exceeds the bound of the lowest precision among its parameters.
    """
    if not len(laws.select(exact=True)):
        return
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    outputs = model(*example_inputs)
    parts = outputs if isinstance(outputs, tuple | list) else (outputs,)
    loss = sum(((part * torch.randn_like(part)).sum() for part in parts if isinstance(part, Tensor)), start=torch.zeros(()))
    grads = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
    by_name = {name: grad for name, grad in zip(params, grads, strict=True) if grad is not None}
    silent = []
    for law in laws.select(exact=True):
        seen = worst(residual(law, params, by_name))
        bound = max(residual_bound(params[name].dtype) for name in law.parameters)
        if seen is None:
            silent.append(law.name)
        elif seen > bound:
            raise ViolationError(
                f"law {law.name!r} has residual {seen:.1e} > {bound:.0e} on the example inputs; the block's laws or its backward pass are wrong"
            )
    if silent:
        warnings.warn(
            f"conserved: no gradient reaches the parameters of {', '.join(silent)} on the example inputs, so these laws were not checked; "
            "pass inputs that use them",
            RuntimeWarning,
            stacklevel=3,
        )


def _outermost_blocks(model: nn.Module) -> list[tuple[str, Block]]:
    found: list[tuple[str, Block]] = []
    inside: list[str] = []
    for path, module in model.named_modules():
        if any(path.startswith(outer) for outer in inside):
            continue
        if isinstance(module, Block):
            prefix = f"{path}." if path else ""
            found.append((prefix, module))
            inside.append(prefix)
    return found


def _canonical_names(model: nn.Module) -> dict[str, str]:
    """Every name of a parameter that is tied to another, with the name that `named_parameters` gives it."""
    first: dict[int, str] = {}
    names = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[name] = first.setdefault(id(parameter), name)
    return names


def _excluded(law: Law, model: nn.Module, shared: set[str]) -> str:
    for name in law.parameters:
        if not model.get_parameter(name).requires_grad:
            return f"{name} is frozen: what holds of frozen weights is not a law of training"
        if name in shared:
            return f"{name} is shared with another module or tied to another parameter, a use that its block does not know of"
    return ""
