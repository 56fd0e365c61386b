"""How far one way to compute a model is from another on a text: both read it a few tokens at a time, so that only these
logits are in memory.
"""

from dataclasses import dataclass

import numpy as np
from hf_reference import THREADS, log_softmax

from llmsrv import _testing

CHUNK = 64


@dataclass
class Divergence:
    """Over all positions of a text."""

    count: int
    kl_sum: float = 0.0
    equal: int = 0
    surprise: float = 0.0  # sum of -log p of the text's own tokens
    exact_surprise: float = 0.0

    @property
    def kl(self):
        """Mean Kullback-Leibler divergence of the found from the exact distribution."""
        return self.kl_sum / self.count

    @property
    def agreement(self):
        """Share of equal greedy tokens."""
        return self.equal / self.count

    @property
    def perplexity(self):
        return float(np.exp(self.surprise / (self.count - 1)))

    @property
    def exact_perplexity(self):
        return float(np.exp(self.exact_surprise / (self.count - 1)))

    def add(self, exact, found, following):
        """`exact`, `found`: logarithms of probabilities of some positions; `following`: the text's tokens there."""
        self.kl_sum += float((np.exp(exact) * (exact - found)).sum())
        self.equal += int((exact.argmax(axis=1) == found.argmax(axis=1)).sum())
        at = np.arange(len(following)), following
        self.surprise -= float(found[at].sum())
        self.exact_surprise -= float(exact[at].sum())

    def __str__(self):
        figures = f"KL {self.kl:.2e}, {self.agreement:.2%} equal, perplexity {self.perplexity:.4f}"
        return f"{figures}, exact {self.exact_perplexity:.4f}"


def divergences(exact, found, ids):
    """Of each of `found`; all are pairs of weights and the type of their cache."""
    sequences = [
        _testing.LoneSequence(
            weights, context_len=len(ids), chunk=CHUNK, kv_cache_dtype=kv_cache_dtype, threads=THREADS
        )
        for weights, kv_cache_dtype in (exact, *found)
    ]
    results = [Divergence(len(ids)) for _ in found]
    for first in range(0, len(ids), CHUNK):
        part, following = ids[first : first + CHUNK], ids[first + 1 : first + 1 + CHUNK]
        wanted = log_softmax(sequences[0].extend(part))
        for sequence, result in zip(sequences[1:], results, strict=True):
            result.add(wanted, log_softmax(sequence.extend(part)), following)
    return results
