r"""The claims of arXiv 2606.17816 in our words, the numbers of laws that they give as formulas, and the checks that are done on them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from conserved.catalog.block import SEED
from conserved.experiments.checks import (
    Bench,
    Formula,
    Options,
    Size,
    algebra,
    count,
    drift_exponent,
    exact_identity,
    exact_router,
    identity,
    reached,
    router_of_the_block,
    silent_router,
)  # fmt: skip
from conserved.experiments.claims import Check

Job = Callable[[Bench], Check]


def no_laws(_: Options) -> int:
    """Theorem 4.1."""
    return 0


def glu_laws(options: Options) -> int:
    """Theorem 4.2: h."""
    return int(options["hidden"])


def attention_laws(options: Options) -> int:
    """Theorem 4.3: two symmetric matrices of order d_h for each head, so heads · d_h(d_h + 1). For d_h ≤ 2d.

    Example:
        >>> attention_laws({"dim": 3, "heads": 2, "head_dim": 2})
        12
    """
    return int(options["heads"] * options["head_dim"] * (options["head_dim"] + 1))


def rotary_laws(options: Options) -> int:
    """Theorem 4.4: for each head, a number for each of d_h/2 frequencies, and one symmetric matrix of order d_h.

    Example:
        >>> rotary_laws({"dim": 3, "heads": 1, "head_dim": 4})
        12
    """
    width = options["head_dim"]
    return int(options["heads"] * (width // 2 + width * (width + 1) // 2))


def expert_laws(options: Options) -> int:
    """The part of the experts in theorems 4.5, 4.6 and 4.7: Σ h."""
    return int(options["experts"] * options["hidden"])


def mixture_laws(options: Options) -> int:
    """Theorems 4.5, 4.6 and, as it claims, 4.7: Σ h, and the d components of Σ_e W_e."""
    return expert_laws(options) + int(options["dim"])


def gated_pair_laws(options: Options) -> int:
    """A gated unit without an activation: two differences for each hidden unit."""
    return 2 * glu_laws(options)


def relu_laws(options: Options) -> int:
    """A ReLU net: one number for each hidden unit."""
    return int(sum(options["dims"][1:-1]))


@dataclass(frozen=True)
class Plan:
    """A claim with what is to be done about it, and a note on what its checks with the role "beside" are about."""

    id: str
    statement: str
    source: str
    jobs: tuple[Job, ...]
    note: str = ""


def _counts(formula: Formula, *sizes: Size, role: str = "claim") -> tuple[Job, ...]:
    return tuple(partial(count, size, formula, role) for size in sizes)


GLU = Size("swiglu", {"dim": 2, "hidden": 3, "out": 2}, "ball")
MHA = Size("mha", {"dim": 2, "heads": 1, "head_dim": 2}, "ball")
ROPE = Size("rope", {"dim": 2, "heads": 1, "head_dim": 2}, "ball")
MOE = Size("moe", {"dim": 2, "hidden": 1, "out": 2, "experts": 2}, "ball")
SPARSE = {"dim": 2, "hidden": 1, "out": 2, "experts": 3}
SIGMOID = (
    Size("moe", {"dim": 2, "hidden": 1, "out": 2, "experts": 2, "gate": "sigmoid"}, "ball"),
    Size("moe", {"dim": 2, "hidden": 2, "out": 2, "experts": 2, "gate": "sigmoid"}),
    Size("moe", SPARSE | {"top_k": 2, "gate": "sigmoid"}, "ball"),
)

_LEVELS: tuple[tuple[Size, Formula], ...] = ((GLU, glu_laws), (MHA, attention_laws), (ROPE, rotary_laws), (MOE, mixture_laws))

_TRAINED = (
    Size("swiglu", {"dim": 3, "hidden": 5, "out": 2}),
    Size("rope", {"dim": 3, "heads": 2, "head_dim": 2}),
    Size("moe", {"dim": 3, "hidden": 2, "out": 2, "experts": 3}),
)

PLANS = (
    Plan(
        "4.1",
        "A two-layer net x ↦ A σ(Bx) with σ = GELU or SiLU has no conservation laws but constants.",
        f"{SEED}, Theorem 4.1",
        (
            *_counts(
                no_laws,
                *(Size(name, {"dim": 2, "hidden": 3, "out": 2}, "ball") for name in ("gelu", "silu")),
                *(Size(name, {"dim": 16, "hidden": 32, "out": 8}) for name in ("gelu", "silu")),
                Size("gelu", {"dim": 1, "hidden": 12, "out": 1}),
                Size("silu", {"dim": 1, "hidden": 32, "out": 1}),
            ),
            *_counts(relu_laws, Size("relu", {"dims": (3, 4, 2)}), role="control"),
        ),
    ),
    Plan(
        "4.2",
        "SwiGLU x ↦ A(SiLU(Bx) ⊙ Cx): the laws are ‖A[:,i]‖² − ‖C[i,:]‖² of the h hidden units, and functions of these.",
        f"{SEED}, Theorem 4.2",
        (
            *_counts(glu_laws, GLU, Size("swiglu", {"dim": 3, "hidden": 4, "out": 2}, "ball"), Size("swiglu", {"dim": 16, "hidden": 32, "out": 16})),
            *_counts(gated_pair_laws, Size("bilinear", {"dim": 2, "hidden": 3, "out": 2}), role="control"),
        ),
    ),
    Plan(
        "4.3",
        "Multi-head attention: the laws are QᵀQ − KᵀK and VᵀV − OᵀO of every head, heads · d_h(d_h + 1) numbers, and functions of these.",
        f"{SEED}, Theorem 4.3",
        _counts(
            attention_laws,
            MHA,
            Size("mha", {"dim": 3, "heads": 2, "head_dim": 2}),
            Size("mha", {"dim": 5, "heads": 2, "head_dim": 3, "causal": True}),
            Size("mha", {"dim": 16, "heads": 4, "head_dim": 4}),
        ),
    ),
    Plan(
        "4.3-sinusoidal",
        "A sinusoidal encoding that is added to the input changes nothing: the laws are those of Theorem 4.3.",
        f"{SEED}, corollary of Theorem 4.3",
        _counts(
            attention_laws,
            Size("mha", {"dim": 2, "heads": 1, "head_dim": 2, "position": "sinusoidal"}, "ball"),
            Size("mha", {"dim": 3, "heads": 2, "head_dim": 2, "position": "sinusoidal"}),
        ),
    ),
    Plan(
        "4.4",
        "With rotary encoding, ‖Q⁽ʲ⁾‖² − ‖K⁽ʲ⁾‖² of every frequency remains of the law of Q and K; that of V and O stays as it is.",
        f"{SEED}, Theorem 4.4",
        _counts(
            rotary_laws,
            ROPE,
            Size("rope", {"dim": 3, "heads": 1, "head_dim": 4}),
            Size("rope", {"dim": 5, "heads": 2, "head_dim": 2, "causal": True}),
            Size("rope", {"dim": 8, "heads": 2, "head_dim": 4}),
        ),
    ),
    Plan(
        "4.5",
        "A dense mixture of SwiGLU experts under a softmax gate has the laws of its experts, the d numbers Σ_e W_e, and no others.",
        f"{SEED}, Theorem 4.5",
        (
            *_counts(
                mixture_laws,
                MOE,
                Size("moe", {"dim": 3, "hidden": 2, "out": 2, "experts": 3}, "ball"),
                Size("moe", {"dim": 8, "hidden": 12, "out": 8, "experts": 4}),
            ),
            *_counts(expert_laws, Size("moe", dict(MOE.options) | {"z_loss": True}, "ball"), role="control"),
        ),
    ),
    Plan(
        "4.6",
        "A sparse mixture with k > 1 active experts, softmax before or after their choice, has the laws of the dense one, and no others.",
        f"{SEED}, Theorem 4.6",
        (
            *_counts(
                mixture_laws,
                Size("moe", SPARSE | {"top_k": 2}, "ball"),
                Size("moe", SPARSE | {"top_k": 2, "gate": "topk_softmax"}, "ball"),
                Size("moe", {"dim": 3, "hidden": 2, "out": 2, "experts": 3, "top_k": 2, "renormalize": True}),
                Size("moe", {"dim": 5, "hidden": 4, "out": 3, "experts": 4, "top_k": 3}),
            ),
            *_counts(expert_laws, Size("moe", SPARSE | {"top_k": 1, "gate": "topk_softmax"}, "ball"), role="beside"),
            partial(silent_router, Size("moe", SPARSE | {"top_k": 1, "gate": "topk_softmax"}, "ball"), "beside"),
            *_counts(mixture_laws, Size("moe", SPARSE | {"top_k": 1}, "ball"), role="beside"),
        ),
        "With k = 1 and a softmax after the choice the only gate is 1: the router gets no gradient, and only the experts have laws. "
        "With k = 1 and a softmax before it, the laws are those of k > 1.",
    ),
    Plan(
        "4.7",
        "Under a normalised sigmoid gate, dense or sparse, a mixture has the laws of its experts and the d numbers Σ_e W_e.",
        f"{SEED}, Theorem 4.7",
        (
            partial(exact_router, "sigmoid", "claim"),
            *_counts(mixture_laws, *SIGMOID),
            *_counts(expert_laws, *SIGMOID, role="beside"),
            partial(router_of_the_block, "beside"),
            partial(exact_router, "softmax", "control"),
        ),
        "What holds are the laws of the experts alone, Σ h numbers; there are no others. Σ_e W_e moves.",
    ),
    Plan(
        "level-sets",
        "The laws are all that gradient flow keeps: the Lie algebra has rank D − number of laws, and flows reach every direction along the level sets.",
        f"{SEED}, completeness",
        (
            *(partial(algebra, size, formula, "claim") for size, formula in _LEVELS),
            *(partial(reached, size, formula, "claim") for size, formula in _LEVELS),
            partial(reached, Size("bilinear", {"dim": 2, "hidden": 3, "out": 2}), gated_pair_laws, "control"),
        ),
    ),
    Plan(
        "discretization",
        "k steps of gradient descent with learning rate τ move a law by O(τ²k); a quadratic one by Σ τ²h(g) exactly.",
        f"{SEED}, discretisation",
        (
            *(partial(drift_exponent, size, variable, expected, "claim") for size in _TRAINED for variable, expected in (("τ", 2.0), ("k", 1.0))),
            *(partial(identity, size, "claim") for size in _TRAINED),
            partial(exact_identity, (2, 3, 2), "claim"),
            partial(drift_exponent, _TRAINED[0], "τ", 1.0, "control", false=True),
        ),
    ),
)
"""The claims of the paper, in its order."""
