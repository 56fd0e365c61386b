"""What the process of every engine does: opens the weights once, then answers measurements, one JSON line each.

    python peer_NAME.py --weights PATH --threads 2 --max-batch 64 --max-context 256

    in   {"measure": "prefill", "tokens": 512, "seed": 1}
         {"measure": "decode", "batch": 8, "input": 128, "output": 128, "seed": 1}
    out  {"version": "..."} once the weights are open, then per measurement {"rate": tokens per second}
         {"error": "..."} instead of either

Only the lines are on standard output; what the engine itself prints goes to standard error.

Definitions: prefill is the length of one prompt over the time from its submission to its first token, after another
prompt of that length. A decode submits `batch` random prompts at once, greedy, ignoring the end of sequence; its rate
is that of rates.steady_rate. The same prompts were run for a few tokens just before, so that nothing is cold, and an
engine with a prefix cache has them all running at once even if they are long.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rates import steady_rate

PR_SET_PDEATHSIG = 1
WARM_UP_TOKENS = 4


class Peer:
    """An engine with open weights. It has `version` and `vocab_size`, and either arrivals() or both measurements."""

    def arrivals(self, prompts, output_tokens):
        """Submits all prompts and yields (seconds, {number of the prompt: new tokens}) until the last token."""
        raise NotImplementedError

    def prefill(self, tokens, seed):
        """Tokens per second of reading one prompt."""
        warm_up, prompt = self.prompts(2, tokens, seed)
        self.finish([warm_up], 1)
        begin = time.perf_counter()
        (end,) = self.finish([prompt], 1)
        return tokens / (end - begin)

    def decode(self, batch, input_tokens, output_tokens, seed):
        """Tokens per second of a whole batch."""
        prompts = self.prompts(batch, input_tokens, seed)
        self.finish(prompts, WARM_UP_TOKENS)
        return steady_rate(self.arrivals(prompts, output_tokens), batch, output_tokens)

    def finish(self, prompts, output_tokens):
        """Runs all prompts to their ends; the moments at which tokens came."""
        return [moment for moment, new in self.arrivals(prompts, output_tokens) if new]

    def prompts(self, count, length, seed):
        """The same for every engine of a model, and others for every seed."""
        generator = random.Random(seed)
        return [[generator.randrange(self.vocab_size) for _ in range(length)] for _ in range(count)]


def measure(peer, request):
    if request["measure"] == "prefill":
        return peer.prefill(request["tokens"], request["seed"])
    return peer.decode(request["batch"], request["input"], request["output"], request["seed"])


def serve(open_peer):
    """Main function of a peer. `open_peer(args)` gives a Peer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--max-batch", type=int, required=True)
    parser.add_argument("--max-context", type=int, required=True)
    parser.add_argument("--home", type=Path, required=True)
    args = parser.parse_args()
    # A stopped process does not notice that its parent is gone: the kernel ends it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**line):
        print(json.dumps(line), file=answers, flush=True)

    try:
        peer = open_peer(args)
    except Exception as error:
        answer(error=f"{type(error).__name__}: {error}")
        raise
    answer(version=peer.version)
    for line in sys.stdin:
        try:
            answer(rate=measure(peer, json.loads(line)))
        except Exception as error:  # noqa: BLE001
            answer(error=f"{type(error).__name__}: {error}")
