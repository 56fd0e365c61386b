"""llama.cpp, by its own llama-batched-bench: one process per measurement, which warms up and then measures twice.

The tool draws its own random tokens and does not sample from the logits.
"""

from __future__ import annotations

import json
import subprocess

from catalog import LLAMA_CPP_BIN, LLAMA_CPP_RELEASE
from peer import Peer, serve

MICRO_BATCH = 512


class LlamaCpp(Peer):
    def __init__(self, args):
        self._command = [str(args.home / LLAMA_CPP_BIN / "llama-batched-bench"), "-m", args.weights]
        self._command += ["-t", str(args.threads), "-tb", str(args.threads), "-b", "2048", "-ub", str(MICRO_BATCH)]
        self.version = LLAMA_CPP_RELEASE

    def prefill(self, tokens, seed):
        return self._run(1, tokens, 1)["speed_pp"]

    def decode(self, batch, input_tokens, output_tokens, seed):
        return self._run(batch, input_tokens, output_tokens)["speed_tg"]

    def _run(self, batch, input_tokens, output_tokens):
        context = batch * (input_tokens + output_tokens)
        shape = ["-c", str(context), "-npp", str(input_tokens), "-ntg", str(output_tokens), "-npl", f"{batch},{batch}"]
        done = subprocess.run(
            [*self._command, *shape, "--output-format", "jsonl"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or len(results) != 2:
            raise RuntimeError(f"llama-batched-bench ended with {done.returncode}: {done.stderr[-500:]}")
        return results[-1]


if __name__ == "__main__":
    serve(LlamaCpp)
