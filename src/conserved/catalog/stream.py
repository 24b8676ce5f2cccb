r"""Laws of the residual stream: they join every block that writes into it.

A pre-norm transformer keeps one stream x ∈ R^d. Embeddings, positions and the output maps of all
branches *write* into it (their axis named d), and every reader normalises it first.

* LayerNorm subtracts the mean over d, so adding a constant along d to any single row that a writer
  writes changes nothing: the sum over d of each such row is conserved. One translation for each row.
* Every normalisation removes the scale, so multiplying all writers by one factor changes nothing, up
  to eps: Σ ‖writer‖² is conserved approximately. It is the only law that joins all blocks.
* Tokens and positions are added: a vector may be moved from one table to the other.

Source: new; checked by residual and rank.
"""

from collections.abc import Iterable
from dataclasses import replace

from conserved.catalog.block import NEW
from conserved.law import Law, Term
from conserved.symmetry import Symmetry


def mean_laws(writers: Iterable[Term]) -> list[Law]:
    """Σ over d of every row of every writer; one law for each writer.

    Holds if all readers of the stream subtract the mean, and nothing else reads the writer.
    """
    laws = []
    for term in writers:
        batch = tuple(name for name in term.view.names if name != "d")
        part = "".join(f"[{cut[0]}:{cut[1]}]" for _, cut, _ in term.view.steps if cut is not None)
        name = f"{term.parameter}{part}.stream_mean"
        laws.append(Law(name, "stream_mean", term.parameter.rpartition(".")[0], Symmetry.TRANSLATION, (term,), batch, source=NEW))
    return laws


def total_mean_law(embedding: Term) -> Law:
    """Σ of all entries of an embedding that is tied to a softmax head.

    One constant added to every entry is no mean of any row for the readers of the stream, and shifts all logits
    alike. A single row may not be shifted: its own logit would move. Axes of the embedding: v, d.
    """
    return Law(f"{embedding.parameter}.stream_mean", "stream_mean", "", Symmetry.TRANSLATION, (embedding,), (), source=NEW)


def scale_law(writers: Iterable[Term], consumers: Iterable[Term], eps: float, prefix: str = "") -> Law:
    """Σ ‖writer‖² − Σ ‖consumer‖², one number; approximate unless eps = 0.

    Args:
        writers: all writers into the stream.
        consumers: what absorbs the factor again: the gain before a tied head, which sees the scaled embedding.
        eps: the largest eps of the readers' normalisations.
        prefix: of the law's name.
    """
    terms = (*writers, *(replace(term, coefficient=-1) for term in consumers))
    reason = "" if eps == 0 else f"eps = {eps:g} in the normalisations; exact for eps = 0"
    return Law(f"{prefix}stream_scale", "stream_scale", "", Symmetry.SCALE, terms, (), None, (), eps == 0, reason, NEW)


def exchange_law(name: str, table: Term, positions: Term) -> Law:
    """Σ_tokens table − Σ_positions positions, a vector over d: the two are only ever added.

    Args:
        name: of the law.
        table: what is added once to every token of its kind, with model axis d.
        positions: the rows of the position table that meet it, with model axis d.
    """
    return Law(name, "stream_exchange", "", Symmetry.TRANSLATION, (table, replace(positions, coefficient=-1)), ("d",), source=NEW)
