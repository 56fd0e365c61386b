"""The two sides of a comparison: Hugging Face transformers in float32 on the CPU, and our loader with our decoder."""

from dataclasses import dataclass

import numpy as np
import torch

from llmsrv import _testing
from llmsrv._core import Engine, EngineConfig, Request, Weights
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

    def generate(self, prompts, count):
        """What the engine itself, batched and token by token, gives after each prompt: the `count` best tokens."""
        config = EngineConfig(max_model_len=2048, kv_cache_memory=256 << 20, kv_cache_dtype=self.kv_cache_dtype)
        engine = Engine(self.weights, config, threads=THREADS)
        try:
            index_of = {}
            for index, prompt in enumerate(prompts):
                request = Request()
                request.id = str(index)
                request.prompt = prompt
                request.sampling.temperature = 0.0
                request.stopping.max_tokens = count
                request.stopping.ignore_eos = True
                index_of[engine.submit(request)] = index
            generated = [[] for _ in prompts]
            running = len(prompts)
            while running:
                for output in engine.wait_outputs(timeout_ms=60_000):
                    assert output.error is None
                    generated[index_of[output.request]] += output.token_ids
                    running -= output.final
        finally:
            engine.shutdown()
        return generated


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


def reference_generate(model, prompts, count):
    """The same from transformers: `count` tokens after each prompt, which are padded in front."""
    longest = max(map(len, prompts))
    padded = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    with torch.no_grad():
        rows = model.generate(
            padded, attention_mask=mask, max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    return rows[:, longest:].tolist()


def log_softmax(logits):
    """In double precision, so that only the logits' own errors count. [tokens, vocab]"""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


# Of float32 against float32, over every token of the vocabulary.
MAX_LOGPROB_ERROR = 1e-3


def continue_greedily(model, prompts, count):
    """Each prompt with the reference's continuation, and the reference's logits of every position."""
    generated = reference_generate(model, prompts, count)
    sequences = [prompt + tokens for prompt, tokens in zip(prompts, generated, strict=True)]
    return list(zip(sequences, reference_logits_of_all(model, sequences), strict=True))


def check_logprobs(ours, continued):
    """Every position of every sequence."""
    for sequence, expected in continued:
        found = ours.logits(sequence)
        assert np.abs(log_softmax(found) - log_softmax(expected)).max() <= MAX_LOGPROB_ERROR
        assert np.array_equal(found.argmax(axis=1), expected.argmax(axis=1))


def check_generated(ours, prompts, continued, count):
    """The engine itself, batched and token by token: the same ids as transformers' own generate()."""
    for prompt, tokens, (sequence, _) in zip(prompts, ours.generate(prompts, count), continued, strict=True):
        assert prompt + tokens == sequence
