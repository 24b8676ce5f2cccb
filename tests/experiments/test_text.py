"""Real text as numbers: the tokens spell it, and batches are windows of it that a generator determines."""

import pydoc_data.topics

import pytest
import torch

from conserved.experiments.text import CharacterText, python_topics


def spell(text: CharacterText, tokens: torch.Tensor) -> str:
    """The characters that tokens stand for."""
    return "".join(text.alphabet[token] for token in tokens.tolist())


@pytest.mark.parametrize("text", ["a", "abba", "zyx\nabc\n", "‖é‖"])
def test_tokens_spell_the_text(text: str) -> None:
    made = CharacterText.of(text)
    assert spell(made, made.tokens) == text
    assert made.alphabet == "".join(sorted(set(text)))
    assert made.tokens.dtype == torch.int64


def test_python_topics_are_the_help_of_this_python() -> None:
    text = python_topics()
    words = spell(text, text.tokens)
    assert len(words) == 200_000
    assert all(character == "\n" or " " <= character <= "~" for character in text.alphabet)
    assert len(text.alphabet) > 60
    first = pydoc_data.topics.topics[min(pydoc_data.topics.topics)]
    assert words[:200] == "".join(c if c == "\n" or " " <= c <= "~" else "?" for c in first[:200])
    assert words.count(" the ") > 1000  # English, not noise
    assert spell(python_topics(50), python_topics(50).tokens) == words[:50]


def test_batches_are_windows_of_the_text(generator: torch.Generator) -> None:
    text = python_topics(2000)
    words = spell(text, text.tokens)
    batch = text.batch(6, 20, generator)
    assert batch.shape == (6, 21)
    assert all(spell(text, window) in words for window in batch)
    assert len({spell(text, window) for window in batch}) > 1


def test_batches_are_the_generators() -> None:
    text = python_topics(2000)

    def draw(seed: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [text.batch(3, 10, generator) for _ in range(4)]

    first, again, other = draw(0), draw(0), draw(1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert not torch.equal(first[0], first[1])


def test_a_text_too_short_for_a_window_is_refused(generator: torch.Generator) -> None:
    with pytest.raises(RuntimeError):
        CharacterText.of("abc").batch(1, 5, generator)
