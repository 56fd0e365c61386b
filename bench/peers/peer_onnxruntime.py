"""ONNX Runtime GenAI, by its generator: one static batch, as made by its model builder."""

from __future__ import annotations

import json
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnxruntime_genai
from peer import Peer, serve


class OnnxRuntime(Peer):
    def __init__(self, args):
        config = onnxruntime_genai.Config(args.weights)
        threads = {"intra_op_num_threads": args.threads, "inter_op_num_threads": 1}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
        self._model = onnxruntime_genai.Model(config)
        self.version = version("onnxruntime-genai")
        self.vocab_size = json.loads((Path(args.weights) / "genai_config.json").read_text())["model"]["vocab_size"]

    def arrivals(self, prompts, output_tokens):
        length = len(prompts[0]) + output_tokens
        options = onnxruntime_genai.GeneratorParams(self._model)
        options.set_search_options(batch_size=len(prompts), max_length=length, min_length=length, do_sample=False)
        generator = onnxruntime_genai.Generator(self._model, options)
        generator.append_tokens(np.array(prompts, dtype=np.int32))
        for _ in range(output_tokens):
            generator.generate_next_token()
            yield time.perf_counter(), dict.fromkeys(range(len(prompts)), 1)


if __name__ == "__main__":
    serve(OnnxRuntime)
