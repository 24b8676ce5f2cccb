"""Transformers assembled from the blocks: a decoder language model and a vision transformer."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from conserved.catalog.attention import POSITIONS, Attention
from conserved.catalog.block import KUNIN, NEW, Block, Statement, require_choice, require_finite, require_positive, weight
from conserved.catalog.feedforward import FeedForward
from conserved.catalog.glu import GatedLinearUnit
from conserved.catalog.layer_scale import layer_scale_law
from conserved.catalog.moe import MixtureOfExperts
from conserved.catalog.norm import Norm, gain_law
from conserved.catalog.position import sinusoidal
from conserved.catalog.stream import exchange_law, mean_laws, scale_law, total_mean_law
from conserved.errors import ConfigurationError
from conserved.law import Law, LawSet, Term
from conserved.symmetry import Symmetry

GATES = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu", "bilinear": "identity"}
MLPS = (*GATES, "gelu", "silu", "tanh", "relu", "moe")


@dataclass(frozen=True)
class TransformerConfig:
    """Every choice of an assembled transformer.

    Args:
        dim: model width.
        layers: number of layers.
        heads: query heads; kv_heads: key–value heads, None for as many; head_dim: None for dim/heads.
        hidden: hidden units of the feed-forward nets, and of each expert.
        mlp: kind of the feed-forward net of each layer, repeated cyclically: "swiglu", "geglu", "reglu",
            "bilinear", "gelu", "silu", "tanh", "relu", "moe".
        experts, top_k, gate, renormalize: of "moe" layers (see `MixtureOfExperts`).
        norm: "rms" or "layer"; eps and norm_offset: of all norms.
        position: "none", "sinusoidal", "learned", "rope", "alibi"; rotary_dim, interleaved: of "rope".
        soft_cap, qk_norm: of the attention.
        bias: whether attention and feed-forward maps (not experts) have biases.
        layer_scale: whether every branch ends in a gain.
        tokens: longest sequence (of a decoder).
        vocab: size of the vocabulary (of a decoder).
        tied: whether the decoder's head is its embedding.
        channels, image, patch, classes: of a vision transformer.
    """

    dim: int = 8
    layers: int = 2
    heads: int = 2
    kv_heads: int | None = None
    head_dim: int | None = None
    hidden: int = 6
    mlp: tuple[str, ...] = ("swiglu",)
    experts: int = 3
    top_k: int | None = None
    gate: str = "softmax"
    renormalize: bool = False
    norm: str = "rms"
    eps: float = 1e-6
    norm_offset: float = 0.0
    position: str = "rope"
    rotary_dim: int | None = None
    interleaved: bool = False
    soft_cap: float | None = None
    qk_norm: bool = False
    bias: bool = False
    layer_scale: bool = False
    tokens: int = 6
    vocab: int = 7
    tied: bool = False
    channels: int = 3
    image: int = 8
    patch: int = 4
    classes: int = 5

    def __post_init__(self) -> None:
        """Check what no block checks."""
        require_positive("transformer", {"dim": self.dim, "layers": self.layers, "heads": self.heads, "tokens": self.tokens, "vocab": self.vocab})
        require_positive("transformer", {"channels": self.channels, "image": self.image, "patch": self.patch, "classes": self.classes})
        require_choice("transformer", "position", self.position, POSITIONS)
        require_finite("transformer", "eps", self.eps, least=0)
        require_finite("transformer", "norm_offset", self.norm_offset)
        if not self.mlp:
            raise ConfigurationError(f"transformer: mlp=(); name at least one of {', '.join(MLPS)}")
        for kind in self.mlp:
            require_choice("transformer", "mlp", kind, MLPS)
        if self.head_dim is None and self.dim % self.heads:
            raise ConfigurationError(f"transformer: heads={self.heads} does not divide dim={self.dim}; give head_dim")
        if self.image % self.patch:
            raise ConfigurationError(f"transformer: patch={self.patch} does not divide image={self.image}; give a divisor")


class TransformerLayer(nn.Module):
    """x ↦ x + γ₁ ⊙ attention(norm₁ x), then x + γ₂ ⊙ mlp(norm₂ x); the gains only with layer_scale."""

    def __init__(self, config: TransformerConfig, number: int, causal: bool) -> None:
        super().__init__()
        self.norm1 = Norm(config.dim, config.norm, config.eps, config.norm_offset)
        self.attention = Attention(
            config.dim,
            config.heads,
            config.dim // config.heads if config.head_dim is None else config.head_dim,
            config.kv_heads,
            causal,
            config.position if config.position in ("rope", "alibi") else "none",
            config.rotary_dim,
            config.interleaved,
            config.soft_cap,
            config.qk_norm,
            config.eps,
            config.bias,
        )
        self.norm2 = Norm(config.dim, config.norm, config.eps, config.norm_offset)
        self.mlp = _mlp(config, config.mlp[number % len(config.mlp)])
        self.gamma1 = nn.Parameter(torch.full((config.dim,), 0.1)) if config.layer_scale else None
        self.gamma2 = nn.Parameter(torch.full((config.dim,), 0.1)) if config.layer_scale else None

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, dim) to the same shape."""
        branch = self.attention(self.norm1(x))
        x = x + (branch if self.gamma1 is None else self.gamma1 * branch)
        branch = self.mlp(self.norm2(x))
        return torch.add(x, branch if self.gamma2 is None else self.gamma2 * branch)

    def term(self, parameter: str, axes: str, coefficient: int = 1) -> Term:
        """A term on one of this layer's parameters."""
        return Term(parameter, tuple(self.get_parameter(parameter).shape), axes, coefficient)

    def read_by(self, norm: str) -> tuple[Term, ...]:
        """The maps that a norm feeds, with the channel as index i."""
        if norm == "norm1":
            axes = {"attention.Q": "h i e", "attention.K": "h i e", "attention.V": "h i e"}
        elif isinstance(self.mlp, MixtureOfExperts):
            axes = {"mlp.W": "e i", "mlp.B": "e o i", "mlp.C": "e o i"}
        else:
            axes = {"mlp.B": "o i"} | ({"mlp.C": "o i"} if isinstance(self.mlp, GatedLinearUnit) else {})
        return tuple(self.term(name, pattern, -1) for name, pattern in axes.items())

    def written_by(self, branch: int, axis: str, coefficient: int = 1) -> tuple[Term, ...]:
        """What a branch writes into the stream (1: attention, 2: feed-forward), with the model axis called `axis`."""
        if branch == 1:
            axes = {"attention.O": f"h {axis} e"} | ({"attention.b_O": axis} if self.attention.b_O is not None else {})
        elif isinstance(self.mlp, MixtureOfExperts):
            axes = {"mlp.A": f"e {axis} h"}
        else:
            axes = {"mlp.A": f"{axis} h"} | ({"mlp.a": axis} if self.mlp.a is not None else {})
        return tuple(self.term(name, pattern, coefficient) for name, pattern in axes.items())

    def own_laws(self, prefix: str) -> Iterator[LawSet]:
        """Laws inside the layer, named with the layer's path."""
        yield self.attention.laws().renamed(f"{prefix}attention.")
        yield self.mlp.laws().renamed(f"{prefix}mlp.")
        gains = [gain_law(f"{norm}.gain", norm, self.get_submodule(norm), f"{norm}.", self.read_by(norm)) for norm in ("norm1", "norm2")]  # type: ignore[arg-type]
        if self.gamma1 is not None:
            for branch in (1, 2):
                gain = self.term(f"gamma{branch}", "i")
                gains.append(layer_scale_law(f"layer_scale{branch}", "", gain, self.written_by(branch, "i", -1)))
        yield LawSet(tuple(gains)).renamed(prefix)

    def stream_writers(self, prefix: str) -> list[tuple[Term, bool]]:
        """Terms that carry the scale of what is written, each with whether it writes its rows unchanged."""
        out = []
        for branch in (1, 2):
            if self.gamma1 is None:
                out += [(term, True) for term in self.written_by(branch, "d")]
            else:
                out.append((self.term(f"gamma{branch}", "d"), False))
        return [(replace(term, parameter=prefix + term.parameter), plain) for term, plain in out]


def _mlp(config: TransformerConfig, kind: str) -> FeedForward | GatedLinearUnit | MixtureOfExperts:
    sizes = (config.dim, config.hidden, config.dim)
    if kind == "moe":
        return MixtureOfExperts(*sizes, config.experts, config.top_k, config.gate, config.renormalize)
    if kind in GATES:
        return GatedLinearUnit(*sizes, GATES[kind], config.bias)
    return FeedForward(*sizes, kind, config.bias)


class Decoder(Block):
    r"""A decoder language model: tokens to log-probabilities of the next token.

        x = E[t] (+ P or sinusoids),   layers,   log softmax( U norm(x) )

    It returns log-probabilities, so that the classifier's law Σ_v U[v,:] is a law of the model whatever
    the loss; cross-entropy of them equals cross-entropy of the logits.
    Its LawSet joins the laws of all blocks with those that span them: every norm's gain against all
    maps it feeds, and the laws of the residual stream (`conserved.catalog.stream`).

    Shapes: E, U (vocab, dim), P (tokens, dim).

    Args:
        config: every choice.

    Raises:
        ConfigurationError: sizes or options contradict each other.

    Example:
        >>> laws = Decoder(TransformerConfig(layers=1, kv_heads=1)).laws()
        >>> laws.families
        ('rope', 'value_output', 'glu', 'norm_gain', 'classifier', 'stream_scale')
    """

    def __init__(self, config: TransformerConfig = TransformerConfig()) -> None:
        super().__init__()
        self.config = config
        self.E = weight(config.vocab, config.dim, fan_in=1)
        self.P = weight(config.tokens, config.dim, fan_in=1) if config.position == "learned" else None
        self.layers = nn.ModuleList([TransformerLayer(config, n, causal=True) for n in range(config.layers)])
        self.norm = Norm(config.dim, config.norm, config.eps, config.norm_offset)
        self.U = None if config.tied else weight(config.vocab, config.dim, fan_in=config.dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token numbers (batch, tokens) to log-probabilities (batch, tokens, vocab)."""
        x = self.E[tokens]
        if self.P is not None:
            x = x + self.P[: tokens.shape[1]]
        elif self.config.position == "sinusoidal":
            x = x + sinusoidal(tokens.shape[1], self.config.dim, x)
        for layer in self.layers:
            x = layer(x)
        head = self.E if self.U is None else self.U
        return nn.functional.linear(self.norm(x), head).log_softmax(-1)

    def laws(self) -> LawSet:
        """Laws of all blocks, gains, classifier and stream."""
        tables = [self.term("E", "v d")] + ([self.term("P", "p d")] if self.P is not None else [])
        laws = _layer_laws(self.layers)
        spanning: list[Law] = []
        if self.U is not None:
            spanning.append(gain_law("norm.gain", "norm", self.norm, "norm.", (self.term("U", "v i", -1),)))
            spanning.append(Law("head.classifier", "classifier", "head", Symmetry.TRANSLATION, (self.term("U", "v d"),), ("d",), source=KUNIN))
        if self.P is not None:
            spanning.append(exchange_law("tokens_positions.stream_exchange", *tables))
        plain = tables if self.U is not None else tables[1:]  # a tied embedding is read by the head, unnormalised
        absorbed = self.norm.gain_terms("norm.") if self.U is None else ()
        written = _written(self.layers)
        if self.config.norm == "layer":
            if self.U is None and self.P is None:  # one constant for all rows shifts all logits alike
                spanning.append(total_mean_law(tables[0]))
            spanning += mean_laws([*plain, *_unchanged(written)])
        if self.config.position != "sinusoidal":  # fixed sinusoids do not scale with the writers
            spanning.append(scale_law([*tables, *(term for term, _ in written)], absorbed, self.config.eps))
        return laws + LawSet(tuple(spanning))

    @property
    def statement(self) -> Statement:
        """What is claimed."""
        return Statement("the laws of all blocks, of the norms' gains, and of the residual stream", f"blocks as cited; {NEW}", "softmax head")

    def example(self, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """(batch, tokens) of token numbers."""
        return (torch.randint(self.config.vocab, (batch, self.config.tokens), generator=generator),)


class VisionTransformer(Block):
    r"""A vision transformer: images to log-probabilities of classes.

        x = [c, W_p patches + b_p] (+ P or sinusoids),   layers,   log softmax( U norm(x_0) + u )

    The position "none" is allowed; "learned" is the usual one.

    Shapes: W_p (dim, channels·patch²), b_p, c (dim), P (1 + patches, dim), U (classes, dim), u (classes).

    Args:
        config: every choice; vocab, tokens and tied are not used.

    Raises:
        ConfigurationError: sizes or options contradict each other.

    Example:
        >>> "stream_mean" in VisionTransformer(TransformerConfig(norm="layer", position="learned")).laws().families
        True
    """

    def __init__(self, config: TransformerConfig = TransformerConfig(norm="layer", position="learned", mlp=("gelu",), bias=True)) -> None:
        super().__init__()
        self.config = config
        size = config.channels * config.patch**2
        self.places = 1 + (config.image // config.patch) ** 2
        self.W_p = weight(config.dim, size, fan_in=size)
        self.b_p = nn.Parameter(torch.zeros(config.dim))
        self.c = weight(config.dim, fan_in=1)
        self.P = weight(self.places, config.dim, fan_in=1) if config.position == "learned" else None
        self.layers = nn.ModuleList([TransformerLayer(config, n, causal=False) for n in range(config.layers)])
        self.norm = Norm(config.dim, config.norm, config.eps, config.norm_offset)
        self.U = weight(config.classes, config.dim, fan_in=config.dim)
        self.u = nn.Parameter(torch.zeros(config.classes))

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, channels, image, image) to log-probabilities (batch, classes)."""
        patch = self.config.patch
        patches = nn.functional.unfold(images, patch, stride=patch).transpose(1, 2)
        x = torch.cat((self.c.expand(len(images), 1, -1), nn.functional.linear(patches, self.W_p, self.b_p)), dim=1)
        if self.P is not None:
            x = x + self.P
        elif self.config.position == "sinusoidal":
            x = x + sinusoidal(self.places, self.config.dim, x)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.linear(self.norm(x[:, 0]), self.U, self.u).log_softmax(-1)

    def laws(self) -> LawSet:
        """Laws of all blocks, gains, classifier and stream."""
        tables = [self.term("W_p", "d m"), self.term("b_p", "d"), self.term("c", "d")]
        spanning = [
            gain_law("norm.gain", "norm", self.norm, "norm.", (self.term("U", "v i", -1),)),
            Law("head.classifier", "classifier", "head", Symmetry.TRANSLATION, (self.term("U", "v d"),), ("d",), source=KUNIN),
            Law("head.classifier_bias", "classifier", "head", Symmetry.TRANSLATION, (self.term("u", "v"),), source=KUNIN),
        ]
        if self.P is not None:
            # the class token meets row 0 only, the patches' bias all other rows
            first, others = self.term("P", "p[0:1] d"), self.term("P", f"p[1:{self.places}] d")
            spanning.append(exchange_law("class_position.stream_exchange", tables[2], first))
            spanning.append(exchange_law("patch_positions.stream_exchange", tables[1], others))
            tables += [first, others]
        written = _written(self.layers)
        if self.config.norm == "layer":
            spanning += mean_laws([*tables, *_unchanged(written)])
        if self.config.position != "sinusoidal":
            spanning += self._scale_laws(tables, [term for term, _ in written])
        return _layer_laws(self.layers) + LawSet(tuple(spanning))

    def _scale_laws(self, tables: list[Term], written: list[Term]) -> list[Law]:
        """One law over all that is written; with one layer, patches and class token each have their own.

        The patches' stream is then read once, before anything is added to it, and its end is not read at all.
        """
        if self.config.layers > 1:
            return [scale_law([*tables, *written], (), self.config.eps)]
        patches, token = tables[:2] + tables[4:], tables[2:4]
        return [scale_law(patches, (), self.config.eps, "patches."), scale_law([*token, *written], (), self.config.eps)]

    @property
    def statement(self) -> Statement:
        """What is claimed."""
        return Statement("the laws of all blocks, of the norms' gains, and of the residual stream", f"blocks as cited; {NEW}", "softmax head")

    def example(self, batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """(batch, channels, image, image)."""
        shape = (batch, self.config.channels, self.config.image, self.config.image)
        return (torch.randn(shape, generator=generator, dtype=torch.float64),)


def _layer_laws(layers: nn.ModuleList) -> LawSet:
    laws = LawSet()
    for number, layer in enumerate(layers):
        for part in layer.own_laws(f"layers.{number}."):  # type: ignore[operator]
            laws = laws + part
    return laws


def _written(layers: nn.ModuleList) -> list[tuple[Term, bool]]:
    """Terms that all layers write into the stream, each with whether it writes its rows unchanged."""
    return [pair for number, layer in enumerate(layers) for pair in layer.stream_writers(f"layers.{number}.")]  # type: ignore[operator]


def _unchanged(written: list[tuple[Term, bool]]) -> list[Term]:
    return [term for term, unchanged in written if unchanged]
