r"""The numbers in which a traced computation can be evaluated, each with the functions that exist in it.

| scalars | element | order | functions | what an evaluation is |
| --- | --- | --- | --- | --- |
| `Complex` | complex128 | of real numbers | all | floating point, at complex points |
| `RealBalls` | arb | where balls do not overlap | all | an enclosure of the exact value |
| `ComplexBalls` | acb | of real numbers | all | an enclosure at complex points |
| `Rational` | fmpq | yes | none | exact |
| `PrimeField` | nmod | none | none | exact, modulo a prime |
| `Polynomials` | fmpq_mpoly | none | none | exact, as polynomials in variables |

Floats are dyadic rationals, so every conversion from them is exact. Arrays are numpy arrays: complex128 for `Complex`, of
objects for the others. Whatever is not defined raises `UnsupportedOperation`: nothing is guessed or rounded in silence.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isfinite
from numbers import Integral, Real
from typing import Any, ClassVar

import flint
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from conserved.errors import ConservedError

Array = NDArray[Any]


class UnsupportedOperation(ConservedError, NotImplementedError):  # ruff: ignore[error-suffix-on-exception-name]  # says what happened, like io.UnsupportedOperation
    """A traced operation is not known, or has no meaning in the scalars it is evaluated in."""


class MinusInfinity:
    """What a mask puts in place of a logit: exp of it is exactly zero, any finite number may be added."""

    def __add__(self, other: Any) -> "MinusInfinity":
        return self

    __radd__ = __sub__ = __add__

    def __rsub__(self, other: Any) -> "MinusInfinity":
        raise UnsupportedOperation("minus infinity is subtracted; it is understood only inside softmax and exp")

    def __mul__(self, other: Any) -> "MinusInfinity":
        raise UnsupportedOperation("minus infinity is multiplied; it is understood only inside softmax and exp")

    __rmul__ = __truediv__ = __rtruediv__ = __pow__ = __mul__

    def __neg__(self) -> "MinusInfinity":
        raise UnsupportedOperation("minus infinity changes its sign; it is understood only inside softmax and exp")

    def __repr__(self) -> str:
        return "-inf"


MINUS_INFINITY = MinusInfinity()


@dataclass(frozen=True)
class Scalars(ABC):
    """A kind of numbers: exact conversion, arithmetic by Python's operators on numpy arrays, and functions where they exist."""

    dtype: ClassVar[Any] = object
    ordered: ClassVar[bool] = False

    @property
    @abstractmethod
    def title(self) -> str:
        """What messages call these numbers."""

    @abstractmethod
    def number(self, value: Any) -> Any:
        """One element, converted exactly; −∞ becomes the mask `MINUS_INFINITY`.

        Raises:
            UnsupportedOperation: the value is not finite, or not a number of this kind.
        """

    def array(self, values: Any) -> Array:
        """Tensors, numpy arrays, nested lists or numbers as an array of elements, converted exactly.

        Example:
            >>> Rational().array([[0.5, 3], [Fraction(1, 3), -2]]).tolist()
            [[1/2, 3], [1/3, -2]]
        """
        raw = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
        given = raw if isinstance(raw, np.ndarray) else _array(raw)
        with self.precision():
            return _each(self.number, given)

    def scalar(self, value: Any) -> Array:
        """One element as an array without axes."""
        return _box(self.number(value))

    def full(self, shape: tuple[int, ...], value: Any) -> Array:
        """An array with one value everywhere."""
        out = np.empty(shape, dtype=self.dtype)
        out[...] = self.scalar(value)
        return out

    @contextmanager
    def precision(self) -> Generator[None, None, None]:
        """A context in which the arithmetic has the precision of these scalars."""
        yield

    def exp(self, x: Array) -> Array:
        """Exponential; zero at a mask."""
        return self._function("exp", x)

    def log(self, x: Array) -> Array:
        """Natural logarithm, the principal branch."""
        return self._function("log", x)

    def sqrt(self, x: Array) -> Array:
        """Square root, the principal branch."""
        return self._function("sqrt", x)

    def rsqrt(self, x: Array) -> Array:
        """1/√x, the principal branch."""
        return self._function("rsqrt", x)

    def sin(self, x: Array) -> Array:
        """Sine."""
        return self._function("sin", x)

    def cos(self, x: Array) -> Array:
        """Cosine."""
        return self._function("cos", x)

    def tanh(self, x: Array) -> Array:
        """Hyperbolic tangent."""
        return self._function("tanh", x)

    def sigmoid(self, x: Array) -> Array:
        """1/(1 + e⁻ˣ)."""
        return self._function("sigmoid", x)

    def erf(self, x: Array) -> Array:
        """The error function 2/√π ∫₀ˣ exp(−t²) dt."""
        return self._function("erf", x)

    def erfc(self, x: Array) -> Array:
        """1 − erf(x), without cancellation."""
        return self._function("erfc", x)

    def power(self, x: Array, exponent: float) -> Array:
        """A constant power of x: by multiplication where the exponent is an integer, else by roots or exp(p·log x)."""
        if exponent == int(exponent):
            whole = int(exponent)
            return _boxed(x**whole if whole >= 0 else self.full((), 1) / x ** (-whole))
        if exponent in (0.5, -0.5):
            return self.sqrt(x) if exponent > 0 else self.rsqrt(x)
        return self.exp(_boxed(self.log(x) * self.scalar(exponent)))

    def exponential(self, base: float, x: Array) -> Array:
        """A constant to the power of x."""
        if base <= 0:
            raise UnsupportedOperation(f"powers of {base} in {self.title}; the base must be positive")
        return self.exp(_boxed(x * self.log(self.scalar(base))))

    def literal(self, value: float) -> Any:
        """A Python number of a graph as an element: itself, dyadic; balls read some as the irrational numbers that they stand for."""
        return self.number(value)

    def root(self, radicand: Fraction, power: int = 0) -> Any:
        """The element √(radicand·π^power)."""
        raise UnsupportedOperation(f"irrational constants in {self.title}; use balls")

    def greater(self, x: Array, y: Array) -> NDArray[np.bool_]:
        """Whether x > y, entrywise.

        Raises:
            UnsupportedOperation: no order in these scalars, or balls that overlap.
        """
        return self._compared(self._exceeds, x, y)

    def equal(self, x: Array, y: Array) -> NDArray[np.bool_]:
        """Whether x = y, entrywise.

        Raises:
            UnsupportedOperation: balls that overlap, unless both are the same single point.
        """
        return self._compared(self._same, x, y)

    def _compared(self, decide: Callable[[Any, Any], bool], x: Array, y: Array) -> NDArray[np.bool_]:
        left, right = np.broadcast_arrays(x, y)
        out = np.empty(left.shape, dtype=bool)
        for place in np.ndindex(left.shape):
            out[place] = decide(left[place], right[place])
        return out

    def _exceeds(self, a: Any, b: Any) -> bool:
        raise UnsupportedOperation(f"{self.title} have no order; use real balls or rationals")

    def _same(self, a: Any, b: Any) -> bool:
        return bool(a == b)

    def _function(self, name: str, x: Array) -> Array:
        raise UnsupportedOperation(f"{name} does not exist in {self.title}; use balls or complex numbers")


class _Exact(Scalars):
    """Numbers that are a field or ring over the integers, without functions."""

    def exponential(self, base: float, x: Array) -> Array:
        """A constant to integer powers."""
        return _each(lambda e: self.number(base) ** self._integer(e), x)

    def _integer(self, element: Any) -> int:
        raise UnsupportedOperation(f"exponents that are {self.title}; use balls")

    def _not_a_number(self, value: Any) -> UnsupportedOperation:
        return UnsupportedOperation(f"{value!r} is not one of the {self.title}; give integers, fractions or finite floats")

    def _fraction(self, value: Any) -> flint.fmpq:
        """The exact rational value of an int, float, fraction or fmpq."""
        if isinstance(value, flint.fmpq):
            return value
        exact = _exact(value)
        if exact is None:
            raise self._not_a_number(value)
        return exact


@dataclass(frozen=True)
class Rational(_Exact):
    """The rational numbers, exact and ordered.

    Example:
        >>> Rational().number(0.75) / 3
        1/4
    """

    ordered: ClassVar[bool] = True

    @property
    def title(self) -> str:
        """Name in messages."""
        return "rational numbers"

    def number(self, value: Any) -> Any:
        """An fmpq."""
        return MINUS_INFINITY if _is_mask(value) else self._fraction(value)

    def _exceeds(self, a: Any, b: Any) -> bool:
        return b is MINUS_INFINITY and a is not b if a is MINUS_INFINITY or b is MINUS_INFINITY else bool(a > b)

    def _integer(self, element: Any) -> int:
        if element.q != 1:
            raise UnsupportedOperation(f"exponent {element} in {self.title}; use balls")
        return int(element.p)


@dataclass(frozen=True)
class PrimeField(_Exact):
    """The integers modulo a prime; a rational number goes to its residue.

    Args:
        prime: the modulus, below 2^64.

    Example:
        >>> PrimeField(7).number(0.5)
        4
    """

    prime: int

    @property
    def title(self) -> str:
        """Name in messages."""
        return f"residues modulo {self.prime}"

    def number(self, value: Any) -> Any:
        """An nmod."""
        if isinstance(value, flint.nmod):
            return value
        if _is_mask(value):
            return MINUS_INFINITY
        exact = self._fraction(value)
        if int(exact.q) % self.prime == 0:
            raise UnsupportedOperation(f"{exact} has no residue modulo {self.prime}; choose another prime")
        return flint.nmod(int(exact.p), self.prime) / flint.nmod(int(exact.q), self.prime)


@dataclass(frozen=True)
class Polynomials(_Exact):
    """Polynomials with rational coefficients in given variables; only constants can divide.

    Args:
        names: of the variables, in order.

    Example:
        >>> x, y = Polynomials(("x", "y")).variables
        >>> (x + y) ** 2 / 2
        1/2*x^2 + x*y + 1/2*y^2
    """

    names: tuple[str, ...]

    @property
    def title(self) -> str:
        """Name in messages."""
        return "polynomials"

    @property
    def context(self) -> Any:
        """The ring, as flint holds it."""
        return flint.fmpq_mpoly_ctx.get(self.names, flint.Ordering.degrevlex)

    @property
    def variables(self) -> Array:
        """The variables, shape (number of names,)."""
        return _array(list(self.context.gens()))

    def number(self, value: Any) -> Any:
        """An fmpq_mpoly."""
        if isinstance(value, flint.fmpq_mpoly):
            return value
        return MINUS_INFINITY if _is_mask(value) else self.context.constant(self._fraction(value))


@dataclass(frozen=True)
class Complex(Scalars):
    """Complex numbers in double precision; real numbers are compared, others are not.

    Example:
        >>> complex(Complex().erf(Complex().array([1j]))[0].round(12))
        1.650425758798j
    """

    dtype: ClassVar[Any] = np.complex128
    ordered: ClassVar[bool] = True

    @property
    def title(self) -> str:
        """Name in messages."""
        return "complex numbers"

    def number(self, value: Any) -> Any:
        """A complex number; −∞ stays −∞."""
        return np.complex128(float(value) if isinstance(value, Fraction) else value)

    def array(self, values: Any) -> Array:
        """As complex128."""
        raw = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
        return np.array(raw, dtype=np.complex128)

    def power(self, x: Array, exponent: float) -> Array:
        """A constant power of x."""
        return np.asarray(x**exponent)

    def exponential(self, base: float, x: Array) -> Array:
        """A constant to the power of x."""
        return np.asarray(np.power(np.complex128(base), x))

    def _function(self, name: str, x: Array) -> Array:
        return np.asarray(_COMPLEX[name](x))

    def _compared(self, decide: Callable[[Any, Any], bool], x: Array, y: Array) -> NDArray[np.bool_]:
        if decide == self._same:
            return np.asarray(np.equal(x, y), dtype=bool)
        if np.imag(x).any() or np.imag(y).any():
            raise UnsupportedOperation(f"{self.title} off the real axis have no order; use real inputs")
        return np.asarray(np.greater(np.real(x), np.real(y)), dtype=bool)


def _stable_sigmoid(z: Array) -> Array:
    left = z.real < 0
    e: Array = np.exp(np.where(left, z, -z))
    value: Array = np.where(left, e, 1) / (1 + e)
    return value


def _by_ball(name: str) -> Callable[[Array], Array]:
    """A function of complex numbers to double precision, by way of balls of 80 bits."""

    def apply(z: Array) -> Array:
        with _bits(80):
            values = [complex(getattr(flint.acb(complex(e)), name)()) for e in z.flat]
        return np.array(values, dtype=np.complex128).reshape(z.shape)

    return apply


_COMPLEX: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda z: 1 / np.sqrt(z),
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "sigmoid": _stable_sigmoid,
    "erf": _by_ball("erf"),
    "erfc": _by_ball("erfc"),
}


IRRATIONAL: dict[float, tuple[Fraction, int]] = {
    0.7071067811865476: (Fraction(1, 2), 0),  # √½, in GELU
    0.3989422804014327: (Fraction(1, 2), -1),  # 1/√(2π), in GELU's derivatives
    0.7978845608028654: (Fraction(2), -1),  # √(2/π), in GELU's tanh form
    1.1283791670955126: (Fraction(4), -1),  # 2/√π, in the derivative of erf
    0.044715: (Fraction(44715, 10**6) ** 2, 0),  # a decimal fraction, in GELU's tanh form
    0.134145: (Fraction(3 * 44715, 10**6) ** 2, 0),  # three times that, in its derivative
    0.26829: (Fraction(6 * 44715, 10**6) ** 2, 0),  # six times that, in its second derivative
}
"""Doubles that derivative formulas leave in a graph, and the exact √(q·π^e) that each stands for, as (q, e)."""


@dataclass(frozen=True)
class _Balls(Scalars):
    """Intervals around midpoints that contain the exact values."""

    bits: int = 128
    ball: ClassVar[Any] = flint.acb

    @contextmanager
    def precision(self) -> Generator[None, None, None]:
        """Sets flint's working precision and puts the old one back."""
        with _bits(self.bits):
            yield

    def number(self, value: Any) -> Any:
        """A ball of radius zero for dyadic numbers, an enclosure for other fractions."""
        if _is_mask(value):
            return MINUS_INFINITY
        if isinstance(value, (self.ball, flint.arb)):
            return self.ball(value)
        exact = value if isinstance(value, flint.fmpq) else _exact(value)
        if exact is not None:
            return self.ball(flint.arb(exact.p) if exact.q == 1 else _dyadic(exact))
        return self._other(value)

    def _other(self, value: Any) -> Any:
        raise UnsupportedOperation(f"{value!r} is not one of the {self.title}; give finite numbers")

    def literal(self, value: float) -> Any:
        """An element; the doubles of `IRRATIONAL` stand for exact irrational numbers."""
        if isinstance(value, float) and abs(value) in IRRATIONAL:
            root = self.root(*IRRATIONAL[abs(value)])
            return root if value > 0 else -root
        return self.number(value)

    def root(self, radicand: Fraction, power: int = 0) -> Any:
        """An enclosure of √(radicand·π^power)."""
        return self.ball((flint.arb(flint.fmpq(radicand.numerator, radicand.denominator)) * flint.arb.pi() ** power).sqrt())

    def _function(self, name: str, x: Array) -> Array:
        if name == "sigmoid":
            return _each(lambda e: 1 / (1 + (-e).exp()), x)
        if name == "exp":
            return _each(lambda e: self.ball(0) if e is MINUS_INFINITY else e.exp(), x)
        return _each(lambda e: getattr(e, name)(), x)

    def _same(self, a: Any, b: Any) -> bool:
        if MINUS_INFINITY in (a, b):
            return a is b
        if not a.overlaps(b):
            return False
        if a.is_exact() and b.is_exact():
            return True  # two points that overlap
        raise UnsupportedOperation(f"the balls {a} and {b} overlap, they cannot be compared; raise the precision or move the point")


@dataclass(frozen=True)
class RealBalls(_Balls):
    """Real balls: intervals that contain the exact value; compared only where they do not overlap.

    Args:
        bits: working precision.

    Example:
        >>> RealBalls(64).exp(RealBalls(64).array([1.0]))[0].contains(flint.arb.const_e())
        True
    """

    ordered: ClassVar[bool] = True
    ball: ClassVar[Any] = flint.arb

    @property
    def title(self) -> str:
        """Name in messages."""
        return "real balls"

    def _exceeds(self, a: Any, b: Any) -> bool:
        if MINUS_INFINITY in (a, b):
            return b is MINUS_INFINITY and a is not b
        if a > b:
            return True
        if a <= b:
            return False
        raise UnsupportedOperation(f"the balls {a} and {b} overlap, they cannot be compared; raise the precision or move the point")


@dataclass(frozen=True)
class ComplexBalls(_Balls):
    """Complex balls: rectangles that contain the exact value.

    Args:
        bits: working precision.

    Example:
        >>> w = ComplexBalls(64).exp(ComplexBalls(64).array([1j]))[0]
        >>> (w.real**2 + w.imag**2).contains(1)
        True
    """

    ball: ClassVar[Any] = flint.acb

    @property
    def title(self) -> str:
        """Name in messages."""
        return "complex balls"

    def _exceeds(self, a: Any, b: Any) -> bool:
        if all(e is MINUS_INFINITY or e.imag == 0 for e in (a, b)):
            return RealBalls(self.bits)._exceeds(*(e if e is MINUS_INFINITY else e.real for e in (a, b)))
        raise UnsupportedOperation(f"{self.title} off the real axis have no order; use real inputs")

    def _other(self, value: Any) -> Any:
        if not isinstance(value, (complex, np.complexfloating)) or not np.isfinite(value):
            return super()._other(value)
        return flint.acb(float(value.real), float(value.imag))


@contextmanager
def _bits(bits: int) -> Generator[None, None, None]:
    before = flint.ctx.prec
    flint.ctx.prec = bits
    try:
        yield
    finally:
        flint.ctx.prec = before


def _exact(value: Any) -> flint.fmpq | None:
    """An int, float, fraction or big integer as a rational number; None for anything else."""
    if isinstance(value, (complex, np.complexfloating)) and value.imag == 0:
        value = float(value.real)
    if isinstance(value, (Integral, np.bool_)):
        return flint.fmpq(int(value))
    if isinstance(value, flint.fmpz):
        return flint.fmpq(value)
    if isinstance(value, (Fraction, Real)) and isfinite(value):
        top, bottom = (value.numerator, value.denominator) if isinstance(value, Fraction) else float(value).as_integer_ratio()
        return flint.fmpq(top, bottom)
    return None


def _dyadic(value: flint.fmpq) -> flint.arb:
    """A rational number as a ball: of radius zero if its denominator is a power of two."""
    bottom = int(value.q)
    if bottom & (bottom - 1):
        return flint.arb(value)
    return flint.arb((value.p, 1 - bottom.bit_length()))


def _is_mask(value: Any) -> bool:
    return value is MINUS_INFINITY or (isinstance(value, (float, complex, np.complexfloating)) and value == -inf)


def _box(element: Any) -> Array:
    """An element as an array without axes; numpy would take polynomials for sequences."""
    if isinstance(element, (complex, np.complexfloating)):
        return np.asarray(element)
    out = np.empty((), dtype=object)
    out[()] = element
    return out


def _boxed(value: Any) -> Array:
    """Numpy turns arrays without axes into elements; back again."""
    return value if isinstance(value, np.ndarray) else _box(value)


def _array(values: Any) -> Array:
    """Nested lists of elements as an object array."""
    if not isinstance(values, (list, tuple)):
        return _box(values)
    parts = [_array(value) for value in values]
    out = np.empty((len(parts), *(parts[0].shape if parts else ())), dtype=object)
    for place, part in enumerate(parts):
        out[place] = part[()] if not part.ndim else part
    return out


def _each(function: Callable[[Any], Any], x: Array) -> Array:
    """A function of elements, entrywise, as an object array."""
    out = np.empty(x.size, dtype=object)
    for place, element in enumerate(x.flat):
        out[place] = function(element)
    return out.reshape(x.shape)
