"""Mixtures of SwiGLU experts, dense and sparse (Theorems 4.5, 4.6; and 4.7, which is false)."""

import torch
from torch import Tensor, nn

from conserved.catalog.block import NEW, OPEN, SEED, Block, Statement, require_choice, require_positive, weight
from conserved.errors import ConfigurationError
from conserved.law import Absence, Law, LawSet, Term
from conserved.symmetry import Symmetry

REFUTED = (
    "normalised sigmoid gate: the sum of the router's rows is not conserved. The paper's Theorem 4.7 claims that it is; "
    "two experts with outputs 0 and e₁, x = e₁, target 0, ½‖·‖², logits (0, ln 3) give d/dt (W₁₁ + W₂₁) = 9/250"
)


class MixtureOfExperts(Block):
    r"""A router W and experts A_e(SiLU(B_e x) ⊙ C_e x).

        x ↦ Σ_e g_e(Wx + r) · A_e( SiLU(B_e x) ⊙ C_e x )

    | gate | g |
    | --- | --- |
    | "softmax" | softmax over all experts, then the k largest; divided by their sum if `renormalize` |
    | "topk_softmax" | the k largest logits, then softmax over them |
    | "sigmoid" | sigmoid over all, the k largest, divided by their sum |

    Laws: ‖A_e[:,i]‖² − ‖C_e[i,:]‖² for every expert and unit, under every gate; and for the softmax gates
    Σ_e W_e (a vector) and Σ_e r_e, since a softmax ignores a shift of all logits.
    With k = 1 and renormalised weights the gate is constant and the router gets no gradient: not a law.
    The z-loss breaks the router's law, a load-balancing loss of softmax probabilities keeps it.

    Shapes: W (experts, dim), r (experts), A (experts, out, hidden), B and C (experts, hidden, dim).

    Args:
        dim: input width.
        hidden: hidden units of an expert.
        out: output width.
        experts: number of experts.
        top_k: experts used for each token; None for all (a dense mixture).
        gate: "softmax", "topk_softmax" or "sigmoid".
        renormalize: for "softmax": divide the k largest by their sum.
        router_bias: whether the router has a bias r.
        load_balancing: return the load-balancing loss as a second output.
        z_loss: return the router's z-loss as one more output.

    Raises:
        ConfigurationError: sizes below one, top_k above the number of experts, an unknown gate.

    Example:
        >>> MixtureOfExperts(dim=2, hidden=2, out=2, experts=2).laws().independent_count     # Σ hidden + d
        6
        >>> MixtureOfExperts(dim=2, hidden=2, out=2, experts=2, gate="sigmoid").laws().independent_count
        4
    """

    def __init__(
        self,
        dim: int = 3,
        hidden: int = 4,
        out: int = 2,
        experts: int = 3,
        top_k: int | None = None,
        gate: str = "softmax",
        renormalize: bool = False,
        router_bias: bool = False,
        load_balancing: bool = False,
        z_loss: bool = False,
    ) -> None:
        super().__init__()
        require_positive("moe", {"dim": dim, "hidden": hidden, "out": out, "experts": experts, "top_k": top_k})
        require_choice("moe", "gate", gate, ("softmax", "topk_softmax", "sigmoid"))
        if top_k is not None and top_k > experts:
            raise ConfigurationError(f"moe: top_k={top_k} exceeds experts={experts}; give at most {experts}")
        self.dim, self.experts, self.gate, self.renormalize = dim, experts, gate, renormalize
        self.top_k = experts if top_k is None else top_k
        self.load_balancing, self.z_loss = load_balancing, z_loss
        self.W = weight(experts, dim, fan_in=dim)
        self.r = nn.Parameter(torch.zeros(experts)) if router_bias else None
        self.A = weight(experts, out, hidden, fan_in=hidden)
        self.B = weight(experts, hidden, dim, fan_in=dim)
        self.C = weight(experts, hidden, dim, fan_in=dim)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Map (…, dim) to (…, out), followed by the auxiliary losses that were asked for."""
        logits = nn.functional.linear(x, self.W, self.r)
        gates = self.gates(logits)
        hidden = nn.functional.silu(torch.einsum("...d,ehd->...eh", x, self.B)) * torch.einsum("...d,ehd->...eh", x, self.C)
        y = torch.einsum("...eh,eoh->...o", gates.unsqueeze(-1) * hidden, self.A)
        extra: tuple[Tensor, ...] = ()
        if self.load_balancing:
            used = (gates > 0).to(x.dtype).flatten(0, -2).mean(0)
            extra += (self.experts * (used * logits.softmax(-1).flatten(0, -2).mean(0)).sum(),)
        if self.z_loss:
            extra += (logits.logsumexp(-1).square().mean(),)
        return (y, *extra) if extra else y

    def gates(self, logits: Tensor) -> Tensor:
        """Weights of the experts, zero for those not used; same shape as the logits."""
        top = logits.topk(self.top_k, dim=-1).indices
        chosen = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, top, True)
        if self.gate == "topk_softmax":
            return logits.masked_fill(~chosen, -torch.inf).softmax(-1)
        weights = (logits.softmax(-1) if self.gate == "softmax" else logits.sigmoid()) * chosen
        if self.gate == "sigmoid" or self.renormalize:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights

    def laws(self) -> LawSet:
        """The experts' laws, and the router's where it holds."""
        source = f"{SEED}, Theorem {self._theorem}"
        units = (self.term("A", "e o i"), self.term("C", "e i d", -1))
        laws = [Law("expert", "expert", "", Symmetry.RESCALE, units, ("e",), "i", source=source)]
        absence = self._router_absence()
        if absence is None:
            laws.append(self._shift("router", "W", "e d", ("d",), source))
            if self.r is not None:
                laws.append(self._shift("router_bias", "r", "e", (), source))
        return LawSet.of(laws, () if absence is None else (absence,))

    def _shift(self, name: str, parameter: str, axes: str, batch: tuple[str, ...], source: str) -> Law:
        terms: tuple[Term, ...] = (self.term(parameter, axes),)
        return Law(name, "router", "", Symmetry.TRANSLATION, terms, batch, source=source)

    def _router_absence(self) -> Absence | None:
        constant = self.top_k == 1 and (self.gate != "softmax" or self.renormalize)
        if self.gate == "sigmoid" and not constant:
            return Absence("W", REFUTED, "refuted by exact arithmetic")
        if self.z_loss:
            return Absence("W", "the z-loss reads the logits themselves: the sum of the router's rows is not conserved", NEW)
        if constant and not self.load_balancing:
            reason = "one expert with weight 1: the gate is constant, the router gets no gradient from the output; it is unused, not conserved"
            return Absence("W", reason, SEED)
        return None

    @property
    def _theorem(self) -> str:
        return "4.7 (its true part)" if self.gate == "sigmoid" else "4.5" if self.top_k == self.experts else "4.6"

    @property
    def statement(self) -> Statement:
        """What is claimed."""
        if self.gate == "sigmoid":
            theorem = "the experts' ‖A_e[:,i]‖² − ‖C_e[i,:]‖² are conserved, Σ_e W_e is not"
            return Statement(theorem, f"{SEED}, Theorem 4.7 (false as stated)", "normalised sigmoid gate")
        complete = f"complete (Theorem {self._theorem})" if self.top_k > 1 and not (self.z_loss or self.r is not None) else OPEN
        return Statement("‖A_e[:,i]‖² − ‖C_e[i,:]‖² and Σ_e W_e are conserved", f"{SEED}, Theorem {self._theorem}", "softmax gate, k > 1, no z-loss", complete)

    def example(self, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """(batch, dim)."""
        return (torch.randn(batch, self.dim, generator=generator, dtype=torch.float64),)
