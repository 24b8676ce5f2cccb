r"""Closed-form laws of a flow, as gradients on its state space.

    gradient flow     the laws of the catalogue, ∇h(θ)
    momentum flows    an antisymmetric generator A of a symmetry gives e^{γt}⟨Aθ, θ̇⟩ (t³ in place of e^{γt} for Nesterov); a
                      translation a gives e^{γt}⟨a, θ̇⟩, and with it ⟨a, θ⟩ + ⟨a, θ̇⟩/γ  (⟨a, θ⟩ + t⟨a, θ̇⟩/2 for Nesterov)
    mirror flow       of the entropy on positive parameters: a rescaling gives Σ ± ‖leg‖² with 2 Σ leg in place of the square of
                      every positive leg; what turns legs into each other gives none

The rescalings of a gradient flow have symmetric generators and give no law with momentum. Of a `general_linear` index space the
rotations remain, n(n − 1)/2; of `rotary` one rotation for each pair.

Source: Marcotte, Gribonval, Peyré 2024, arXiv 2405.12888, theorem on momentum flows (Noether).
"""

from itertools import combinations

import torch
from torch import Tensor
from torch.func import jacrev

from conserved.certify.flows import Flow
from conserved.certify.rank import numerical_rank
from conserved.law import LawSet, Term, jacobian
from conserved.symmetry import Symmetry


def known_gradients(flow: Flow, laws: LawSet, state: Tensor) -> Tensor:
    """Gradients of the closed-form laws of a flow at a state, one row each, (components, size); dependent ones included.

    None for a metric that is given, and for mirror flows with momentum: laws of these are not known here.
    """
    model = flow.model
    if flow.metric is not None or flow.kind == "mirror-momentum" or not len(laws):
        return torch.zeros(0, flow.size, dtype=torch.float64)
    if flow.kind == "mirror":
        mirrored: Tensor = jacrev(lambda s: _entropy_laws(flow, laws, s))(state)
        return mirrored.reshape(-1, flow.size)
    if flow.has_velocity:
        values: Tensor = jacrev(lambda s: _charges(flow, laws, s))(state)
        return values.reshape(-1, flow.size)
    params = model.parameters(state)
    dense = jacobian(laws, params)
    rows = torch.zeros(len(dense), flow.size, dtype=torch.float64)
    starts = dict(zip(model.shapes, torch.tensor([0, *(params[name].numel() for name in model.shapes)]).cumsum(0).tolist(), strict=False))
    column = 0
    for name in laws.parameters:
        size = params[name].numel()
        rows[:, starts[name] : starts[name] + size] = dense[:, column : column + size]
        column += size
    return rows


def independent(gradients: Tensor) -> tuple[Tensor, float]:
    """An orthonormal basis of the rows, and the gap that decided their rank."""
    if not len(gradients):
        return gradients, float("inf")
    found = numerical_rank(gradients)
    lengths = torch.linalg.vector_norm(gradients, dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    _, _, directions = torch.linalg.svd(gradients / lengths, full_matrices=False)
    return directions[: found.rank], found.gap


def _entropy_laws(flow: Flow, laws: LawSet, theta: Tensor) -> Tensor:
    """Laws of the metric diag(θ) on positive parameters: there d/dt 2Σθ is what d/dt ‖θ‖² is without it."""
    params, positive = flow.model.parameters(theta), flow.model.positive
    found = [theta[:0]]
    for law in laws:
        if law.symmetry in (Symmetry.GENERAL_LINEAR, Symmetry.RESCALE):
            legs = [(t, _leg(t, law.kept, params, t.offset)) for t in law.terms]
            sums = [float(t.coefficient) * (2 * leg if t.parameter in positive else leg.square()).sum(-1) for t, leg in legs]
            found.append(torch.stack(sums).sum(0).flatten())
    return torch.cat(found)


def _charges(flow: Flow, laws: LawSet, state: Tensor) -> Tensor:
    n = flow.model.size
    time, gamma = state[0], flow.damping
    positions, velocities = flow.model.parameters(state[1 : n + 1]), flow.model.parameters(state[n + 1 :])
    growth = time**3 if flow.kind == "nesterov" else 1 + gamma * time  # e^{γt}, with its derivative, at t = 0: there the states are
    found = [state[:0]]
    for law in laws:
        pair = ("c",) if law.symmetry is Symmetry.ROTARY else ()
        legs = [(float(t.coefficient), _leg(t, law.kept + pair, positions, t.offset), _leg(t, law.kept + pair, velocities)) for t in law.terms]
        if law.symmetry is Symmetry.TRANSLATION:
            place = torch.stack([c * x.sum(-1) for c, x, _ in legs]).sum(0).flatten()
            speed = torch.stack([c * v.sum(-1) for c, _, v in legs]).sum(0).flatten()
            found.append(growth * speed)
            if flow.kind == "nesterov" or gamma:
                found.append(place + speed * time / 2 if flow.kind == "nesterov" else gamma * place + speed)
        elif law.symmetry in (Symmetry.GENERAL_LINEAR, Symmetry.ROTARY):
            size = 2 if pair else law.kept_sizes[-1]
            for a, b in combinations(range(size), 2):
                turned = [(x[..., a, :] * v[..., b, :] - x[..., b, :] * v[..., a, :]).sum(-1).flatten() for _, x, v in legs]
                found.append(growth * torch.stack(turned).sum(0))
    return torch.cat(found)


def _leg(term: Term, kept: tuple[str, ...], tensors: dict[str, Tensor], offset: float = 0.0) -> Tensor:
    """A leg with its kept axes first and all others flattened into one last axis."""
    names = term.view.names
    order = [names.index(axis) for axis in kept]
    rest = [axis for axis in range(len(names)) if axis not in order]
    viewed = (term.view(tensors[term.parameter]) + offset).permute(*order, *rest)
    return viewed.flatten(len(kept)) if rest else viewed.unsqueeze(-1)
