"""OpenVINO GenAI, by its continuous batching: an exported folder, or a GGUF file that it reads itself."""

from __future__ import annotations

import time
from importlib.metadata import version

import numpy as np
import openvino
import openvino_genai
from catalog import kv_cache_gib
from peer import Peer, serve

SMALLEST_VOCABULARY = 32_000


class OpenVino(Peer):
    def __init__(self, args):
        scheduling = openvino_genai.SchedulerConfig()
        scheduling.cache_size = kv_cache_gib(args.max_batch, args.max_context)
        scheduling.max_num_seqs = args.max_batch
        scheduling.enable_prefix_caching = True
        properties = {"INFERENCE_NUM_THREADS": args.threads}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(args.weights, scheduling, "CPU", properties)
        self.version = version("openvino-genai")
        # The pipeline does not tell; these token ids are in every model's vocabulary.
        self.vocab_size = SMALLEST_VOCABULARY

    def arrivals(self, prompts, output_tokens):
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = output_tokens, True, False
        handles = [
            self._pipeline.add_request(number, openvino.Tensor(np.array([prompt], dtype=np.int64)), config)
            for number, prompt in enumerate(prompts)
        ]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            moment = time.perf_counter()
            new = {}
            for number, handle in enumerate(handles):
                if handle.can_read():
                    new[number] = sum(len(output.generated_ids) for output in handle.read().values())
            yield moment, new


if __name__ == "__main__":
    serve(OpenVino)
