"""Real text that is certain to be on the user's machine: the help topics of Python itself."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class CharacterText:
    """A text as numbers, one for each character.

    Args:
        tokens: character numbers, shape (length,).
        alphabet: the characters in the order of their numbers.
    """

    tokens: Tensor
    alphabet: str

    @classmethod
    def of(cls, text: str) -> "CharacterText":
        """Number the characters of a text in sorted order."""
        alphabet = "".join(sorted(set(text)))
        number = {character: i for i, character in enumerate(alphabet)}
        return cls(torch.tensor([number[c] for c in text]), alphabet)

    def batch(self, size: int, length: int, generator: torch.Generator) -> Tensor:
        """Random windows of the text, shape (size, length + 1): inputs and the next characters."""
        starts = torch.randint(len(self.tokens) - length, (size,), generator=generator)
        return self.tokens[starts[:, None] + torch.arange(length + 1)]


def python_topics(characters: int = 200_000) -> CharacterText:
    """The beginning of Python's `help()` topics (`pydoc_data.topics`), about 700 000 characters in all.

    Characters outside of printable ASCII are replaced by a question mark, so that the alphabet is small; line breaks stay.
    The text, and with it the alphabet, is that of the Python at hand: other versions word their help differently.
    """
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics))[:characters]
    return CharacterText.of("".join(c if c == "\n" or " " <= c <= "~" else "?" for c in text))
