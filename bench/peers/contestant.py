"""One engine with one set of weights, in a process of its own that stands still unless it is asked."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from catalog import ENGINES

OPEN_S = 600.0  # vLLM compiles its model
MEASURE_S = 900.0


class PeerError(RuntimeError):
    """An engine that cannot be run, or a measurement that failed, in one line."""


@dataclass(frozen=True)
class Contestant:
    """What is to be run: an engine, the name of its weights' format, and where they lie."""

    engine: str
    weights_format: str
    weights: Path

    def __str__(self):
        return f"{self.engine} {self.weights_format}"

    def command(self, home, threads, batch_max, context_max):
        engine = ENGINES[self.engine]
        program = home / engine.program if engine.program else Path(sys.executable)
        for needed in (program, self.weights):
            if not needed.exists():
                raise PeerError(f"{needed} is not there; bench/peers/install.py makes it")
        python = program if program.name == "python" else Path(sys.executable)
        options = {"weights": self.weights, "threads": threads, "max-batch": batch_max, "max-context": context_max}
        options["home"] = home
        return [str(python), str(engine.script), *(f"--{name}={value}" for name, value in options.items())]


class Running:
    """The process. Between two questions it is stopped, so that no engine's spinning threads disturb another."""

    def __init__(self, contestant, command, log, threads):
        self.contestant = contestant
        self._log = log
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
        try:
            self.version = self._answer(OPEN_S)["version"]
        except PeerError:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def rate(self, request):
        """Tokens per second. Raises PeerError."""
        self._signal(signal.SIGCONT)
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            return self._answer(MEASURE_S)["rate"]
        except BrokenPipeError as error:
            raise PeerError(f"it ended: {self._log}") from error
        finally:
            self._signal(signal.SIGSTOP)

    def close(self):
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _answer(self, timeout_s):
        # One line is on its way at most, so nothing can lie in the buffer that select() does not see.
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            raise PeerError(f"{'it ended' if ready else f'no answer in {timeout_s:.0f} s'}: {self._log}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(" ".join(answer["error"].split())[:300])
        return answer

    def _signal(self, number):
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
