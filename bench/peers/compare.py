"""llmsrv against other engines on the same weights, in turns, in one run: ratios, beside the targets.

    python bench/peers/compare.py --peers llama_cpp,openvino,onnxruntime,vllm --files q4_1,q4_0,q8_0,bf16 \\
        --batches 1,8,32,64 --rounds 3 --json FILE
    python bench/peers/compare.py --model gemma3-270m --peers llama_cpp

Every engine has a process of its own with --threads threads and answers prefill and decode as defined in peer.py. Only
one runs at a time; the others are stopped. For each shape all are measured once per round, in an order that moves on
by one each round. Before each round, with everybody stopped, two things are read off the machine: its read bandwidth,
which changes with a virtual machine's placement, and how busy other programs keep it. Where that is not near 0, the
ratios are not worth keeping: engines suffer very unequally.

Words:
  context   prompt and output tokens of a decode at its end; the output is --output tokens
  ratio     llmsrv over the other, of the medians; in brackets the lowest and highest of the rounds
  best4     the fastest of all others with any weights of 4 bits, in this shape
  floor, goal   of targets.py; `short` is below the floor, `floor` and `goal` say what is reached
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from catalog import BITS, DEFAULT_HOME, ENGINES, FILES
from contestant import Contestant, PeerError, Running
from targets import AGAINST_BEST_FOUR_BITS, AGAINST_LLAMA_CPP, OTHER_MODEL, TARGET_CONTEXT

from llmsrv import _core
from llmsrv.weights.fetch import resolve_model

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peak"))
from peak import bandwidth
from report import Report, machine


@dataclass(frozen=True)
class Shape:
    """A prefill of `size` tokens, or a decode of `size` sequences at `context` tokens."""

    measure: str
    size: int
    context: int | None = None

    def __str__(self):
        if self.measure == "prefill":
            return f"prefill {self.size} tokens"
        return f"decode batch {self.size}, context {self.context}"

    def request(self, output_tokens, seed):
        if self.measure == "prefill":
            return {"measure": "prefill", "tokens": self.size, "seed": seed}
        lengths = {"input": self.context - output_tokens, "output": output_tokens}
        return {"measure": "decode", "batch": self.size, **lengths, "seed": seed}

    @property
    def key(self):
        """As in targets.py; None for a decode at a context for which there are no targets."""
        return (self.measure, self.size) if self.context in (None, TARGET_CONTEXT) else None


def chosen_contestants(args):
    """Each engine's weights for the chosen files, each set of weights once."""
    engines = [ENGINES["llmsrv"], *(ENGINES[name] for name in args.peers)]
    if args.model:
        weights = resolve_model(args.model)
        return [Contestant(engine.name, weights.stem, weights) for engine in engines if engine.reads_gguf]
    chosen = (
        Contestant(engine.name, weights_format, args.home / path)
        for engine in engines
        for weights_format, path in (engine.weights[file] for file in args.files if file in engine.weights)
    )
    return list(dict.fromkeys(chosen))


def started(contestants, args):
    """Their processes; who cannot be run is said in one line."""
    running = []
    context_max = max([*args.contexts, *(tokens + 1 for tokens in args.prefill)])
    for contestant in contestants:
        log = args.home / "logs" / f"{str(contestant).replace(' ', '-')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            command = contestant.command(args.home, args.threads, max([1, *args.batches]), context_max)
            running.append(Running(contestant, command, log, args.threads))
            print(f"{contestant}: {running[-1].version}", flush=True)
        except PeerError as error:
            print(f"{contestant}: cannot be run: {error}", flush=True)
    return running


def busy_share(seconds=0.3):
    """Share of all processors' time that went to programs, or to other virtual machines, just now."""

    def sample():
        user, nice, system, idle, waiting, *others = map(
            int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
        )
        return user + nice + system + sum(others), idle + waiting

    before = sample()
    time.sleep(seconds)
    busy, idle = (after - start for start, after in zip(before, sample(), strict=True))
    return busy / max(busy + idle, 1)


def machine_state(threads):
    return {"gb_per_s": round(bandwidth(threads) / 1e9, 1), "others": round(busy_share(), 2)}


def measured(running, shape, args):
    """({contestant: rate of each round}, state of the machine before each); who fails is not asked again."""
    rates, states = {each.contestant: [] for each in running}, []
    for number in range(args.rounds):
        states.append(machine_state(args.threads))
        turn = number % max(len(running), 1)
        for each in running[turn:] + running[:turn]:
            if each.contestant not in rates:
                continue
            try:
                rates[each.contestant].append(each.rate(shape.request(args.output, args.seed + number)))
            except PeerError as error:
                print(f"  {each.contestant}: {error}", flush=True)
                del rates[each.contestant]
    return rates, states


def target_for(shape, mine, other, other_model):
    if other_model:
        return OTHER_MODEL.get(shape.key)
    if other.engine == "llama_cpp" and other.weights_format == mine.weights_format:
        return AGAINST_LLAMA_CPP.get(shape.key, {}).get(mine.weights_format)
    return None


def comparisons(shape, rates, other_model):
    """(llmsrv's contestant, the other, name of the other, target) of all that is worth a ratio."""
    others = [contestant for contestant in rates if contestant.engine != "llmsrv"]
    bits = {contestant: BITS.get(contestant.weights_format) for contestant in rates}
    four = [contestant for contestant in others if bits[contestant] == 4]
    for mine in (contestant for contestant in rates if contestant.engine == "llmsrv"):
        for other in others:
            same_format_of_llama_cpp = other.engine != "llama_cpp" or other.weights_format == mine.weights_format
            if bits[mine] == bits[other] and same_format_of_llama_cpp:
                yield mine, other, str(other), target_for(shape, mine, other, other_model)
        if bits[mine] == 4 and four:
            best = max(four, key=lambda contestant: statistics.median(rates[contestant]))
            yield mine, best, f"best4 ({best})", AGAINST_BEST_FOUR_BITS.get(shape.key)


def verdict(ratio, target):
    if ratio < target.floor:
        return "short"
    return "goal" if target.goal and ratio >= target.goal else "floor"


def report_shape(report, shape, rates, states, args):
    state = {name: [each[name] for each in states] for name in states[0]}
    about = {"shape": str(shape), "measure": shape.measure, "size": shape.size, "context": shape.context, **state}
    reads = f"reads {min(state['gb_per_s']):.0f} .. {max(state['gb_per_s']):.0f} GB/s"
    print(f"\n{shape}   ({reads}; others keep the machine {max(state['others']):.0%} busy)")
    for contestant, values in rates.items():
        rate = statistics.median(values)
        report.add(
            f"  {contestant!s:<24}{rate:10,.0f} tok/s", **about,
            engine=contestant.engine, weights=contestant.weights_format, rate=rate, rates=values,
        )  # fmt: skip
    for mine, other, name, target in comparisons(shape, rates, bool(args.model)):
        rounds = [a / b for a, b in zip(rates[mine], rates[other], strict=True)]
        ratio = statistics.median(rates[mine]) / statistics.median(rates[other])
        text = f"  {mine!s:<16} / {name:<32}{ratio:6.2f}  ({min(rounds):.2f} .. {max(rounds):.2f})"
        aims = {}
        if target:
            aims = {"floor": target.floor, "goal": target.goal, "verdict": verdict(ratio, target)}
            goal = f"  goal {target.goal:g}" if target.goal else ""
            text += f"   floor {target.floor:g}{goal}: {aims['verdict']}"
        report.add(text, **about, weights=mine.weights_format, other=name, ratio=ratio, ratios=rounds, **aims)


def names(text):
    return [name for name in text.split(",") if name]


def numbers(text):
    return [int(number) for number in names(text)]


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peers = [name for name in ENGINES if name != "llmsrv"]
    parser.add_argument("--peers", type=names, default=peers, help="of %(default)s, commas between")
    parser.add_argument("--files", type=names, default=list(FILES), help="of %(default)s, commas between")
    parser.add_argument("--model", help="another GGUF file, or a demo model's name, instead of --files")
    parser.add_argument("--batches", type=numbers, default=[1, 8, 32, 64])
    parser.add_argument("--contexts", type=numbers, default=[TARGET_CONTEXT])
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--prefill", type=numbers, default=[512])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=_core.physical_cores())
    parser.add_argument("--home", type=Path, default=DEFAULT_HOME, help="as for install.py")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="append one JSON line per result")
    args = parser.parse_args()
    args.home = args.home.expanduser().resolve()
    for kind, given, known in (("peers", args.peers, peers), ("files", args.files, FILES)):
        if not set(given) <= set(known):
            parser.error(
                f"--{kind}: {', '.join(sorted(set(given) - set(known)))} is not known; known: {', '.join(known)}"
            )
    if min(args.contexts) <= args.output:
        parser.error(
            f"a context of {min(args.contexts)} tokens has no room for a prompt and {args.output} output tokens"
        )
    return args


def main():
    args = parsed()
    shapes = [Shape("prefill", tokens) for tokens in args.prefill]
    shapes += [Shape("decode", batch, context) for context in args.contexts for batch in args.batches]
    report = Report("peers", args.json, model=args.model, threads=args.threads, seed=args.seed)
    print(f"{machine()}, {args.threads} threads", flush=True)
    running = started(chosen_contestants(args), args)
    try:
        for shape in shapes:
            rates, states = measured(running, shape, args)
            report_shape(report, shape, rates, states, args)
    finally:
        for each in running:
            each.close()


if __name__ == "__main__":
    main()
