"""The two sides of a comparison: Hugging Face transformers in float32 on the CPU, and our loader with our decoder."""

from dataclasses import dataclass

import numpy as np
import torch

from llmsrv import _testing
from llmsrv._core import Weights
from llmsrv.weights.load import inspect_model, load_weights

THREADS = 2


@dataclass
class Ours:
    """One checkpoint on our side; the KV cache is float32 where the weights are."""

    weights: Weights
    kv_cache_dtype: str

    def logits(self, ids):
        """[tokens, vocab]"""
        return _testing.forward_logits(self.weights, ids, kv_cache_dtype=self.kv_cache_dtype, threads=THREADS)


def load_ours(path, dtype="float32"):
    weights = load_weights(inspect_model(path), dtype=dtype, threads=THREADS)
    return Ours(weights, "float32" if dtype == "float32" else "bfloat16")


def reference_logits(model, ids):
    """[tokens, vocab] of the reference."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


def reference_logits_of_all(model, sequences, batch=4):
    """The same for each of many sequences. Padding behind a sequence cannot reach what is before it."""
    found = []
    for first in range(0, len(sequences), batch):
        part = sequences[first : first + batch]
        longest = max(map(len, part))
        with torch.no_grad():
            rows = model(torch.tensor([ids + [0] * (longest - len(ids)) for ids in part])).logits.numpy()
        found += [row[: len(ids)] for row, ids in zip(rows, part, strict=True)]
    return found


def log_softmax(logits):
    """In double precision, so that only the logits' own errors count. [tokens, vocab]"""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
