"""Errors a user can meet: one base class, a few precise ones.

Every message is one line and says what was got, where, and what to do about it.
"""


class ConservedError(Exception):
    """Base of all errors that `conserved` raises on purpose."""


class NotationError(ConservedError, ValueError):
    """An axes pattern cannot be parsed, or does not fit the parameter's shape."""


class LawError(ConservedError, ValueError):
    """A law is not well formed: terms, axes and symmetry contradict each other."""


class MissingParameterError(ConservedError, KeyError):
    """A law names a parameter that the mapping does not hold."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would print the repr


class ShapeMismatchError(ConservedError, ValueError):
    """A tensor's shape is not the one that the law was written for."""


class NonFiniteError(ConservedError, ValueError):
    """A parameter or gradient holds NaN or infinity."""


class UnknownNameError(ConservedError, ValueError):
    """A block, option, family or preset of that name does not exist."""


class ConfigurationError(ConservedError, ValueError):
    """Sizes or options of a block contradict each other."""


class NoLawsError(ConservedError, ValueError):
    """A model has no parameters, or no law could be looked for."""


class ViolationError(ConservedError, AssertionError):
    """An exact law does not hold on the gradients it was checked on."""


class RunError(ConservedError, RuntimeError):
    """A run directory is missing, already in use, damaged, or of another model."""
