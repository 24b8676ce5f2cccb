"""Gains of normalisations, against the linear maps that they feed."""

import torch
from torch import Tensor, nn

from conserved.catalog.block import NEW, Block, Statement, require_choice, require_finite, require_positive, weight
from conserved.errors import ConfigurationError
from conserved.law import Law, LawSet, Term
from conserved.symmetry import Symmetry


class Norm(nn.Module):
    r"""RMSNorm x ↦ (γ+o) ⊙ x/rms(x), or LayerNorm, which subtracts the mean first and adds β.

    Args:
        dim: width.
        kind: "rms" or "layer".
        eps: added to the mean square.
        offset: o, 1 for gains stored around zero.
    """

    def __init__(self, dim: int, kind: str = "rms", eps: float = 1e-6, offset: float = 0.0) -> None:
        super().__init__()
        require_positive("norm", {"dim": dim})
        require_choice("norm", "kind", kind, ("rms", "layer"))
        require_finite("norm", "eps", eps, least=0)
        require_finite("norm", "offset", offset)
        self.kind, self.eps, self.offset = kind, eps, offset
        self.gamma = nn.Parameter(torch.full((dim,), 1.0 - offset))
        self.beta = nn.Parameter(torch.zeros(dim)) if kind == "layer" else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise over the last axis."""
        if self.beta is not None:
            x = x - x.mean(-1, keepdim=True)
        y = (self.gamma + self.offset) * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))
        return y if self.beta is None else y + self.beta

    def gain_terms(self, prefix: str) -> tuple[Term, ...]:
        """γ and β as producers of the index i."""
        shape = tuple(self.gamma.shape)
        gain = (Term(f"{prefix}gamma", shape, "i", 1, self.offset),)
        return gain if self.beta is None else (*gain, Term(f"{prefix}beta", shape, "i"))


def gain_law(name: str, layer: str, norm: Norm, prefix: str, consumers: tuple[Term, ...]) -> Law:
    r"""γ_i² (+ β_i²) − Σ ‖column i of every map the norm feeds‖².

    Holds if the norm's output is read by linear maps only, all of them listed.

    Args:
        name: of the law.
        layer: path of the norm.
        norm: the normalisation.
        prefix: path of its parameters, with a final dot.
        consumers: the maps it feeds, with index axis i and coefficient −1.
    """
    return Law(name, "norm_gain", layer, Symmetry.RESCALE, (*norm.gain_terms(prefix), *consumers), index="i", source=NEW)


class NormalizedLinear(Block):
    r"""A normalisation that feeds several linear maps.

        x ↦ (W_1 n(x), …, W_m n(x)),    γ_i² (+ β_i²) − Σ_k ‖W_k[:,i]‖²    for every channel i

    Shapes: γ, β (dim), W_k (outs[k], dim).

    Args:
        dim: width of the norm.
        outs: output widths of the maps.
        kind: "rms" or "layer".
        offset: 1 for gains stored as γ − 1.

    Raises:
        ConfigurationError: a size below one, no map, or an unknown kind.

    Example:
        >>> NormalizedLinear(3, (2, 4)).laws()[0].formula
        'norm.gamma[i]² − ‖maps.0[:,i]‖² − ‖maps.1[:,i]‖²'
    """

    def __init__(self, dim: int = 4, outs: tuple[int, ...] = (3, 2), kind: str = "rms", offset: float = 0.0) -> None:
        super().__init__()
        if not outs:
            raise ConfigurationError("norm: outs=(); give at least one output width")
        require_positive("norm", {"dim": dim} | {f"outs[{i}]": n for i, n in enumerate(outs)})
        self.dim = dim
        self.norm = Norm(dim, kind, offset=offset)
        self.maps = nn.ParameterList([weight(n, dim, fan_in=dim) for n in outs])

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, dim) to (…, Σ outs)."""
        y = self.norm(x)
        return torch.cat([y @ w.T for w in self.maps], dim=-1)

    def laws(self) -> LawSet:
        """One `rescale` law over the channels."""
        consumers = tuple(self.term(f"maps.{k}", "o i", -1) for k in range(len(self.maps)))
        return LawSet((gain_law("norm.gain", "norm", self.norm, "norm.", consumers),))

    @property
    def statement(self) -> Statement:
        """What is claimed."""
        return Statement("γ_i² (+ β_i²) − Σ ‖column i of every map it feeds‖² is conserved", NEW, "the norm feeds linear maps only")

    def example(self, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """(batch, dim)."""
        return (torch.randn(batch, self.dim, generator=generator, dtype=torch.float64),)
