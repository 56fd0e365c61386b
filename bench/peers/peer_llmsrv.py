"""llmsrv, in-process: no tokenizer, no server. Files with 4 to 8 bits are held as they are."""

from __future__ import annotations

import sys
from pathlib import Path

from peer import Peer, serve

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from in_process import batches, make_engine, make_request, open_weights
from report import commit


class Llmsrv(Peer):
    def __init__(self, args):
        weights, self.vocab_size = open_weights(args.weights, "auto", args.threads)
        self._engine = make_engine(weights, args.threads, args.max_batch, args.max_context)
        self.version = f"{commit()} {self._engine.device}"

    def arrivals(self, prompts, output_tokens):
        keys = {
            self._engine.submit(make_request(str(number), prompt, output_tokens)): number
            for number, prompt in enumerate(prompts)
        }
        for moment, outputs in batches(self._engine, keys):
            yield moment, {keys[output.request]: len(output.token_ids) for output in outputs if output.token_ids}


if __name__ == "__main__":
    serve(Llmsrv)
