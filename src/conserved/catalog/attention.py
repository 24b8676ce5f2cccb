"""Multi-head attention and all that is done to it (Theorems 4.3 and 4.4)."""

from math import sqrt

import torch
from torch import Tensor, nn

from conserved.catalog.block import NEW, OPEN, SEED, Block, Statement, require_choice, require_finite, require_positive, weight
from conserved.catalog.position import alibi, rotate, sinusoidal
from conserved.errors import ConfigurationError
from conserved.law import Absence, Law, LawSet, Term
from conserved.symmetry import Symmetry

POSITIONS = ("none", "sinusoidal", "learned", "rope", "alibi")
FOLKLORE = "folklore: softmax ignores what all keys share"


class Attention(Block):
    r"""Multi-head attention in the paper's notation, with shared key–value heads.

        head i:   softmax( s · x Q_i K_iᵀ xᵀ ) x V_i O_iᵀ ,     summed over heads

    | variant | laws, per key–value head |
    | --- | --- |
    | no rotation: none, learned, sinusoidal, ALiBi, soft-cap | Σ QᵀQ − KᵀK, a matrix (Theorem 4.3) |
    | rotary | one number for each frequency (Theorem 4.4); a matrix on entries that are not rotated |
    | QK-norm | ‖Q‖², ‖K‖² per head (approximate for eps > 0); gain against gain; no law between Q and K |
    | always | VᵀV − Σ OᵀO, a matrix |
    | key bias without soft-cap and QK-norm | the key bias itself, on entries that are not rotated: its gradient is zero |

    Sums run over the query heads that share the key–value head. Biases of Q, K, V are one more row
    of their matrix.

    Shapes: Q, O (heads, dim, head_dim); K, V (kv_heads, dim, head_dim); biases (heads, head_dim).

    Args:
        dim: model width.
        heads: query heads.
        head_dim: width of a head.
        kv_heads: key–value heads (1 is multi-query); None for one to each query head.
        causal: whether a token sees only itself and earlier ones.
        position: "none", "sinusoidal" (added to the input), "learned" (a table added to the input),
            "rope", "alibi".
        rotary_dim: number of rotated entries of a head, even; None for all.
        interleaved: rotary pairs are neighbours if true, halves if false.
        soft_cap: cap of the logits, c·tanh(z/c); None for none.
        qk_norm: whether queries and keys are RMS-normalised per head, with gains.
        eps: of the QK-norm; 0 makes its scale laws exact.
        bias: whether all four maps have a bias.
        tokens: length of the learned table.

    Raises:
        ConfigurationError: sizes below one, heads that kv_heads does not divide, an odd or too large
            rotary_dim, an unknown position.

    Example:
        >>> Attention(dim=6, heads=2, head_dim=2).laws().independent_count        # heads·d_h(d_h+1)
        12
        >>> Attention(dim=6, heads=2, head_dim=2, position="rope").laws().independent_count
        8
    """

    def __init__(
        self,
        dim: int = 5,
        heads: int = 2,
        head_dim: int = 4,
        kv_heads: int | None = None,
        causal: bool = False,
        position: str = "none",
        rotary_dim: int | None = None,
        interleaved: bool = False,
        soft_cap: float | None = None,
        qk_norm: bool = False,
        eps: float = 1e-6,
        bias: bool = False,
        tokens: int = 6,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        require_positive("attention", {"dim": dim, "heads": heads, "head_dim": head_dim, "kv_heads": kv_heads, "rotary_dim": rotary_dim, "tokens": tokens})
        require_choice("attention", "position", position, POSITIONS)
        if heads % kv_heads:
            raise ConfigurationError(f"attention: kv_heads={kv_heads} does not divide heads={heads}; give a divisor")
        self.rotary_dim = 0 if position != "rope" else head_dim if rotary_dim is None else rotary_dim
        if self.rotary_dim % 2 or self.rotary_dim > head_dim:
            raise ConfigurationError(f"attention: {self.rotary_dim} rotary entries in a head of {head_dim}; give an even number up to head_dim")
        require_finite("attention", "eps", eps, least=0)
        if soft_cap is not None and not soft_cap > 0:
            raise ConfigurationError(f"attention: soft_cap={soft_cap}; give a positive cap or None")
        self.dim, self.heads, self.head_dim, self.kv_heads = dim, heads, head_dim, kv_heads
        self.causal, self.position, self.interleaved, self.soft_cap, self.eps = causal, position, interleaved, soft_cap, eps
        self.tokens = tokens
        self.Q = weight(heads, dim, head_dim, fan_in=dim)
        self.K = weight(kv_heads, dim, head_dim, fan_in=dim)
        self.V = weight(kv_heads, dim, head_dim, fan_in=dim)
        self.O = weight(heads, dim, head_dim, fan_in=heads * head_dim)
        self.b_Q = nn.Parameter(torch.zeros(heads, head_dim)) if bias else None
        self.b_K = nn.Parameter(torch.zeros(kv_heads, head_dim)) if bias else None
        self.b_V = nn.Parameter(torch.zeros(kv_heads, head_dim)) if bias else None
        self.b_O = nn.Parameter(torch.zeros(dim)) if bias else None
        self.gamma_Q = nn.Parameter(torch.ones(head_dim)) if qk_norm else None
        self.gamma_K = nn.Parameter(torch.ones(head_dim)) if qk_norm else None
        self.P = weight(tokens, dim, fan_in=1) if position == "learned" else None

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, dim) to the same shape."""
        if self.position == "sinusoidal":
            x = x + sinusoidal(x.shape[1], self.dim, x)
        if self.P is not None:
            x = x + self.P[: x.shape[1]]
        q, k, v = self._heads(x, self.Q, self.b_Q), self._heads(x, self.K, self.b_K), self._heads(x, self.V, self.b_V)
        if self.gamma_Q is not None and self.gamma_K is not None:
            q, k = self.gamma_Q * self._normalise(q), self.gamma_K * self._normalise(k)
        if self.rotary_dim:
            q, k = rotate(q, self.rotary_dim, self.interleaved), rotate(k, self.rotary_dim, self.interleaved)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        y = torch.einsum("bhni,hdi->bnd", self._pattern(q, k) @ v, self.O)
        return y if self.b_O is None else y + self.b_O

    @staticmethod
    def _heads(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        """Project (batch, tokens, dim) to (batch, head, tokens, head_dim)."""
        y = torch.einsum("bnd,hdi->bhni", x, matrix)
        return y if bias is None else y + bias[:, None]

    def _normalise(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)

    def _pattern(self, q: Tensor, k: Tensor) -> Tensor:
        """Attention probabilities (batch, head, query, key)."""
        logits = q @ k.transpose(-1, -2) / sqrt(self.head_dim)
        if self.soft_cap is not None:
            logits = self.soft_cap * torch.tanh(logits / self.soft_cap)
        if self.position == "alibi":
            logits = logits + alibi(self.heads, logits.shape[-1], logits)
        if self.causal:
            later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
            logits = logits.masked_fill(later, -torch.inf)
        return logits.softmax(-1)

    def laws(self) -> LawSet:
        """The laws of the table above."""
        laws = [*self._query_key(), self._value_output()]
        absences: tuple[Absence, ...] = ()
        if self.gamma_Q is not None:
            absences = (Absence("", "QK-norm stands between Q and K: the law QᵀQ − KᵀK (or its rotary part) does not hold here", NEW),)
        if self._key_bias_is_silent():
            rest = self._unrotated
            bias, scale = (self.term("b_K", f"h {rest}"),), (self.term("K", f"h d {rest}"),)
            laws.append(Law("key_bias", "key_bias", "", Symmetry.TRANSLATION, bias, ("h", "i"), None, scale, source=FOLKLORE))
        return LawSet.of(laws, absences)

    def _key_bias_is_silent(self) -> bool:
        """A key bias shifts all logits of a query alike where it is not rotated, unless something sits between it and the softmax."""
        return self.b_K is not None and self.rotary_dim < self.head_dim and self.soft_cap is None and self.gamma_K is None

    @property
    def _unrotated(self) -> str:
        """The entries of a head that are not rotated, as index i."""
        return f"i[{self.rotary_dim}:{self.head_dim}]" if self.rotary_dim else "i"

    def _group(self, axes: str, head: str = "k") -> str:
        """The head axis of Q and O, split into key–value head and query head within the group."""
        return f"({head}={self.kv_heads} g) {axes}"

    def _query_key(self) -> list[Law]:
        if self.gamma_Q is not None:
            return self._query_key_norms()
        theorem = f"{SEED}, Theorem 4.3" if self.kv_heads == self.heads else NEW
        laws = []
        if self.rotary_dim:
            pair = f"({'j c=2' if self.interleaved else 'c=2 j'})[0:{self.rotary_dim}]"
            source = f"{SEED}, Theorem 4.4" if self.kv_heads == self.heads and self.rotary_dim == self.head_dim else NEW
            laws.append(Law("rope", "rope", "", Symmetry.ROTARY, self._qk_terms(pair, silent=False), ("k",), "j", source=source))
            theorem = NEW
        if self.rotary_dim < self.head_dim:
            terms = self._qk_terms(self._unrotated, silent=self._key_bias_is_silent())
            laws.append(Law("query_key", "query_key", "", Symmetry.GENERAL_LINEAR, terms, ("k",), "i", source=theorem))
        return laws

    def _qk_terms(self, index: str, silent: bool) -> tuple[Term, ...]:
        """Q (and its bias) against K; a silent key bias is a law of its own and stays out."""
        terms = [self.term("Q", self._group(f"d {index}")), self.term("K", f"k d {index}", -1)]
        if self.b_Q is not None:
            terms.insert(1, self.term("b_Q", self._group(index)))
            if not silent:
                terms.append(self.term("b_K", f"k {index}", -1))
        return tuple(terms)

    def _query_key_norms(self) -> list[Law]:
        exact = self.eps == 0
        reason = "" if exact else f"eps = {self.eps:g} in the QK-norm; exact for eps = 0"
        laws = []
        for matrix, bias in (("Q", "b_Q"), ("K", "b_K")):
            terms = [self.term(matrix, "h d i")] + ([self.term(bias, "h i")] if self.b_Q is not None else [])
            laws.append(Law(f"qk_norm_{matrix}", "qk_norm", "", Symmetry.SCALE, tuple(terms), ("h",), None, (), exact, reason, NEW))
        axes = f"({'j c=2' if self.interleaved else 'c=2 j'})[0:{self.rotary_dim}]"
        if self.rotary_dim:
            gains = (self.term("gamma_Q", axes), self.term("gamma_K", axes, -1))
            laws.append(Law("qk_gain_rope", "qk_gain", "", Symmetry.ROTARY, gains, (), "j", source=NEW))
        if self.rotary_dim < self.head_dim:
            gains = (self.term("gamma_Q", self._unrotated), self.term("gamma_K", self._unrotated, -1))
            laws.append(Law("qk_gain", "qk_gain", "", Symmetry.RESCALE, gains, (), "i", source=NEW))
        return laws

    def _value_output(self) -> Law:
        terms = [self.term("V", "k d i"), self.term("O", self._group("d i"), -1)]
        if self.b_V is not None:
            terms.insert(1, self.term("b_V", "k i"))
        theorem = f"{SEED}, Theorem 4.3" if self.kv_heads == self.heads else NEW
        return Law("value_output", "value_output", "", Symmetry.GENERAL_LINEAR, tuple(terms), ("k",), "i", source=theorem)

    @property
    def statement(self) -> Statement:
        """What is claimed."""
        plain = self.kv_heads == self.heads and self.gamma_Q is None and self.b_Q is None and self.soft_cap is None and self.position != "alibi"
        if plain and self.rotary_dim == self.head_dim:
            return Statement("‖Q⁽ʲ⁾‖² − ‖K⁽ʲ⁾‖² per frequency and VᵀV − OᵀO are conserved", f"{SEED}, Theorem 4.4", "full rotation", "complete (Theorem 4.4)")
        if plain and not self.rotary_dim:
            return Statement("QᵀQ − KᵀK and VᵀV − OᵀO per head are conserved", f"{SEED}, Theorem 4.3", "no rotation, causal or not", "complete (Theorem 4.3)")
        return Statement(f"{self._claim} are conserved", NEW, "sums run over the query heads that share a key–value head", OPEN)

    @property
    def _claim(self) -> str:
        """The rows of the table above that apply."""
        if self.gamma_Q is not None:
            parts = ["‖Q‖² and ‖K‖² per head (for eps = 0)", "γ_Q² − γ_K² per frequency" if self.rotary_dim else "γ_Q² − γ_K² per entry"]
        else:
            parts = ["Σ ‖Q⁽ʲ⁾‖² − ‖K⁽ʲ⁾‖² per frequency"] if self.rotary_dim else []
            if self.rotary_dim < self.head_dim:
                parts.append("Σ QᵀQ − KᵀK" + (" on entries that are not rotated" if self.rotary_dim else ""))
        parts.append("VᵀV − Σ OᵀO")
        if self._key_bias_is_silent():
            parts.append("the key bias")
        return ", ".join(parts[:-1]) + f" and {parts[-1]}"

    def example(self, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """(batch, tokens, dim)."""
        return (torch.randn(batch, self.tokens, self.dim, generator=generator, dtype=torch.float64),)
