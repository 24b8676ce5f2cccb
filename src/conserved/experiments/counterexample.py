r"""The claim of Theorem 4.7 that is false, in rational arithmetic: Σ_e W_e under a normalised sigmoid gate.

    y = Σ_e g_e(Wx) E_e(x),     dW_e/dt = −∂/∂W_e ½‖y − target‖²

Two experts with outputs 0 and e₁ at x = e₁, target 0, logits (0, ln 3). All that is left of the model are rational numbers: the odds
exp(z) = (1, 3), the gates, and their slopes. So d/dt (W₁₁ + W₂₁) is a rational number; the theorem says that it is 0.

Source: new; arXiv 2606.17816, Theorem 4.7, claims the contrary.
"""

from fractions import Fraction

OUTPUTS = (Fraction(0), Fraction(1))
"""First coordinate of the two experts' outputs at x = e₁: 0 and e₁."""

ODDS = (Fraction(1), Fraction(3))
"""exp of the logits (0, ln 3)."""

Gate = tuple[tuple[Fraction, ...], tuple[tuple[Fraction, ...], ...]]
"""Gates g_p, and their slopes ∂g_p/∂z_e as slopes[p][e]."""


def sigmoid_gate(odds: tuple[Fraction, ...] = ODDS) -> Gate:
    """The normalised sigmoid g = s/Σs with s = t/(1+t) for odds t: s' = s(1−s), ∂g_p/∂z_e = s'_e (δ_pe Σs − s_p)/(Σs)².

    Example:
        >>> print(*sigmoid_gate()[0])
        2/5 3/5
    """
    s = [t / (1 + t) for t in odds]
    total = sum(s, Fraction(0))
    slopes = tuple(tuple(s[e] * (1 - s[e]) * ((total if p == e else 0) - s[p]) / total**2 for e in range(len(s))) for p in range(len(s)))
    return tuple(value / total for value in s), slopes


def softmax_gate(odds: tuple[Fraction, ...] = ODDS) -> Gate:
    """The softmax g = t/Σt for odds t: ∂g_p/∂z_e = g_p(δ_pe − g_e).

    Example:
        >>> print(*softmax_gate()[0])
        1/4 3/4
    """
    g = tuple(t / sum(odds, Fraction(0)) for t in odds)
    return g, tuple(tuple(g[p] * ((1 if p == e else 0) - g[e]) for e in range(len(g))) for p in range(len(g)))


def router_velocity(gate: Gate, outputs: tuple[Fraction, ...] = OUTPUTS) -> list[Fraction]:
    """dW_e1/dt = −∂/∂W_e1 of ½‖Σ g_p y_p‖², with x = e₁ and target 0, for every expert e.

    Example:
        >>> print(sum(router_velocity(sigmoid_gate())))
        9/250
        >>> print(sum(router_velocity(softmax_gate())))
        0
    """
    gates, slopes = gate
    y = sum((g * o for g, o in zip(gates, outputs, strict=True)), Fraction(0))
    return [-y * sum((slopes[p][e] * outputs[p] for p in range(len(gates))), Fraction(0)) for e in range(len(gates))]
