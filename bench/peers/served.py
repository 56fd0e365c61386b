"""Servers against servers: the same requests to llmsrv (HTTP and gRPC), llama.cpp's server and vLLM's, in turns.

    python bench/peers/served.py --peers llama_cpp,vllm --concurrency 1,8,32,64 --rounds 3 --json FILE

One client, this process: random prompts of token ids, greedy, end of sequence ignored, streams; a closed loop of N
clients over 2 N requests, 4 at least, each with a connection of its own. The client runs on the same cores as the
server. Only one server runs at a time; the others are stopped. All take turns round by round.

Words:
  tok/s   generated tokens / (first request sent to last token received); tpot: see `llmsrv bench`
  ratio   llmsrv over the best peer, of the medians; floor and goal are those of targets.py
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import uvloop
from catalog import DEFAULT_HOME, GGUF, LLAMA_CPP_BIN
from compare import machine_state, names, numbers, verdict
from targets import SERVED

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serve"))
from client import Client, HttpClient, Job, Progress, closed_loop, summary
from report import Report

VOCAB = 49152
START_S = 600.0  # vLLM compiles its model
CONTEXT = 2048


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A server in a process group of its own, which stands still unless it is asked."""

    def __init__(self, name, command, log, *, port, health="/health", model="", environment=()):
        self.name, self.port, self._log = name, port, log
        self.http = f"127.0.0.1:{port}"
        self.grpc = None
        self._fields = {"model": model} if model else {}
        self._process = subprocess.Popen(
            command, stdout=log.open("w"), stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **dict(environment)},
        )  # fmt: skip
        self._wait(f"http://{self.http}{health}")
        self.stand_still()

    def _wait(self, url):
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._process.poll() is None:
            with suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
            time.sleep(0.1)
        self.close()
        raise RuntimeError(f"{self.name} did not start: {self._log}")

    def clients(self, seed):
        """(what it is, a client) of each protocol."""
        yield "http", HttpClient(self.http, VOCAB, seed, reuse=False, **self._fields)
        if self.grpc:
            yield "grpc", Client(self.grpc, 2, VOCAB, f"{seed} grpc")  # other prompts: the first ones are cached now

    def stand_still(self):
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self):
        os.killpg(self._process.pid, signal.SIGCONT)

    def close(self):
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def llmsrv(args, log, file):
    port, grpc_port = free_port(), free_port()
    command = [sys.executable, "-m", "llmsrv.serve.daemon", "--model", args.home / GGUF[file], "--port", grpc_port,
               "--http-port", port, "--threads", args.threads, "--max-model-len", CONTEXT]  # fmt: skip
    server = Server(f"llmsrv {file}", [*map(str, command)], log, port=port, health="/ready")
    server.grpc = f"127.0.0.1:{grpc_port}"
    return server


def llama_cpp(args, log, file):
    port = free_port()
    slots = max(args.concurrency)
    command = [args.home / LLAMA_CPP_BIN / "llama-server", "-m", args.home / GGUF[file], "--port", port, "-np", slots,
               "-c", slots * 512, "-t", args.threads, "-tb", args.threads, "--no-webui"]  # fmt: skip
    return Server(f"llama_cpp {file}", [*map(str, command)], log, port=port)


def vllm(args, log):
    port = free_port()
    home = args.home / "vllm/venv"
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: args.threads]))
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": cores, "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1", "LD_PRELOAD": str(home / "lib/libiomp5.so"),
    }  # fmt: skip
    command = [home / "bin/vllm", "serve", args.home / "weights/hf-bf16", "--dtype", "bfloat16", "--port", port,
               "--max-model-len", CONTEXT, "--max-num-seqs", max(args.concurrency),
               "--served-model-name", "smollm2"]  # fmt: skip
    return Server("vllm bf16", [*map(str, command)], log, port=port, model="smollm2", environment=environment.items())


def started(args):
    """All servers that can be started; who cannot is said in one line."""
    makers = [(f"llmsrv-{file}", lambda log, file=file: llmsrv(args, log, file)) for file in args.files]
    if "llama_cpp" in args.peers:
        makers += [(f"llama_cpp-{f}", lambda log, f=f: llama_cpp(args, log, f)) for f in ("q4_0", "bf16")]
    if "vllm" in args.peers:
        makers.append(("vllm", lambda log: vllm(args, log)))
    servers = []
    for name, make in makers:
        log = args.home / "logs" / f"served-{re.sub(r'[^a-z0-9_-]', '-', name)}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            servers.append(make(log))
            print(f"{servers[-1].name}: serves", flush=True)
        except (RuntimeError, OSError) as error:
            print(f"{name}: cannot be run: {error}", flush=True)
    return servers


async def load(client, concurrency, args):
    """The figures of one closed loop."""
    job = Job(0.0, args.input_tokens, args.output_tokens)
    await closed_loop(client, [Job(0.0, 16, 4)] * concurrency, concurrency, Progress("warm-up", concurrency))
    jobs = [job] * max(4, 2 * concurrency)
    return summary(await closed_loop(client, jobs, concurrency, Progress("load", len(jobs))))


async def measured(servers, concurrency, args):
    """{(server, protocol): figures of each round}"""
    figures = {}
    for number in range(args.rounds):
        turn = number % len(servers)
        for server in servers[turn:] + servers[:turn]:
            server.go_on()
            seed = args.seed + number * len(args.concurrency) + args.concurrency.index(concurrency)
            for protocol, client in server.clients(seed * 2):
                found = await load(client, concurrency, args)
                await client.close()
                figures.setdefault((server.name, protocol), []).append(found)
            server.stand_still()
    return figures


def report_one(report, concurrency, figures, state):
    print(f"\nconcurrency {concurrency}   (reads {state['gb_per_s']:.0f} GB/s; others {state['others']:.0%} busy)")
    rates = {}
    for (name, protocol), rounds in figures.items():
        rate = rates[name, protocol] = statistics.median(each["output_tokens_per_s"] for each in rounds)
        failed = sum(each["requests"] - each["ok"] for each in rounds)
        tpot = statistics.median(each["tpot_ms"]["p50"] for each in rounds if each["tpot_ms"]) if rate else None
        text = f"  {name + ' ' + protocol:<24}{rate:10,.1f} tok/s" + (f", TPOT {tpot:.2f} ms" if tpot else "")
        report.add(
            text + (f", {failed} failed" if failed else ""), concurrency=concurrency, server=name, protocol=protocol,
            rate=rate, rates=[each["output_tokens_per_s"] for each in rounds], tpot_ms=tpot, failed=failed, **state,
        )  # fmt: skip
    others = {key: rate for key, rate in rates.items() if not key[0].startswith("llmsrv")}
    if not others:
        return
    best = max(others, key=others.__getitem__)
    for key, rate in rates.items():
        if key in others:
            continue
        ratio, target = rate / others[best], SERVED.get(concurrency)
        text = f"  {' '.join(key):<24} / best ({best[0]}) {ratio:6.2f}"
        aims = {}
        if target:
            aims = {"floor": target.floor, "goal": target.goal, "verdict": verdict(ratio, target)}
            text += f"   floor {target.floor:g}  goal {target.goal:g}: {aims['verdict']}"
        report.add(text, concurrency=concurrency, server=key[0], protocol=key[1], other=best[0], ratio=ratio, **aims)


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=names, default=["llama_cpp", "vllm"], help="of llama_cpp,vllm")
    parser.add_argument("--files", type=names, default=["q4_0"], help="what llmsrv serves")
    parser.add_argument("--concurrency", type=numbers, default=[1, 8, 32, 64])
    parser.add_argument("--input-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--home", type=Path, default=DEFAULT_HOME, help="where install.py put things")
    parser.add_argument("--json", metavar="FILE", help="append one JSON line per result")
    return parser.parse_args()


async def compare(args):
    report = Report("served_peers", args.json, seed=args.seed, threads=args.threads)
    servers = started(args)
    try:
        for concurrency in args.concurrency:
            state = machine_state(args.threads)
            report_one(report, concurrency, await measured(servers, concurrency, args), state)
    finally:
        for server in servers:
            server.close()


if __name__ == "__main__":
    uvloop.run(compare(parsed()))
