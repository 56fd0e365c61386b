"""vLLM's CPU build, its engine in this process, as an offline user gets it: compiled, bfloat16."""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

from catalog import kv_cache_gib
from peer import Peer, serve


def preload_openmp():
    """vLLM asks for this library in LD_PRELOAD, which is read when a process starts: so it starts once more."""
    library = Path(sys.prefix) / "lib/libiomp5.so"
    if library.exists() and str(library) != os.environ.get("LD_PRELOAD"):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "LD_PRELOAD": str(library)})


class Vllm(Peer):
    def __init__(self, args):
        cores = sorted(os.sched_getaffinity(0))[: args.threads]
        os.environ.update(
            HF_HUB_OFFLINE="1",
            VLLM_CPU_KVCACHE_SPACE=str(kv_cache_gib(args.max_batch, args.max_context)),
            VLLM_CPU_OMP_THREADS_BIND=",".join(map(str, cores)),
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_NO_USAGE_STATS="1",
        )
        from vllm import LLM, SamplingParams  # reads the environment when it is imported
        from vllm.sampling_params import RequestOutputKind

        self._engine = LLM(
            model=args.weights,
            dtype="bfloat16",
            max_model_len=args.max_context,
            max_num_seqs=args.max_batch,
        ).llm_engine
        self._sampling = lambda tokens: SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA
        )
        self._submitted = 0
        self.version = version("vllm")
        self.vocab_size = json.loads((Path(args.weights) / "config.json").read_text())["vocab_size"]

    def arrivals(self, prompts, output_tokens):
        numbers = {}
        for number, prompt in enumerate(prompts):
            name = str(self._submitted)
            self._submitted += 1
            numbers[name] = number
            self._engine.add_request(name, {"prompt_token_ids": prompt}, self._sampling(output_tokens))
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            moment = time.perf_counter()
            yield moment, {numbers[output.request_id]: len(output.outputs[0].token_ids) for output in outputs}


if __name__ == "__main__":
    preload_openmp()
    serve(Vllm)
