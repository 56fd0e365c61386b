"""Two tenants on one daemon: how many tokens each gets, under the policy "fair" and, to compare, under "fcfs".

Tenant A keeps --streams-a streams open, tenant B --streams-b; each stream sends its next request, a fresh random
prompt, when it has its answer, so both have work at every moment. Outputs are of half to one and a half times
--output-tokens, so that the streams of a tenant do not move in step. A tenant is a cache_salt. The runs, each on a
daemon of its own, one after the other:

  fair       equal weights
  weighted   "fair" with the weight --weight for A and 1 for B
  fcfs       the order of arrival

Words, over --seconds after --warmup seconds:
  computed_per_s   tokens that the model computed for a tenant: prompt tokens, counted when the first token of their
                   answer arrives, and generated tokens, when they arrive; this is what "fair" shares
  output_per_s     generated tokens alone
  share            computed_per_s over the tenant's weight, of A / of B; 1 is fair, the target is within 10 % of it
  output_share     the same of output_per_s
"""

import asyncio
import itertools
import os
import random
import sys
import time
from pathlib import Path

import uvloop
from client import Client, Job, served_by
from daemon import Daemon, own_cpu_s, parser_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from report import Report

from llmsrv.v1 import types_pb2

TENANTS = ("A", "B")


class Tally:
    """Tokens of one tenant within a span of time."""

    def __init__(self, began, ended):
        self._began, self._ended = began, ended
        self.prompt = self.output = self.requests = 0

    def note(self, sample):
        for number, (moment, tokens) in enumerate(sample.arrivals):
            if self._began <= moment < self._ended:
                self.output += tokens
                if number == 0:
                    self.prompt += sample.input_tokens
        self.requests += self._began <= sample.ended < self._ended

    def per_s(self):
        seconds = self._ended - self._began
        return {
            "computed_per_s": round((self.prompt + self.output) / seconds, 1),
            "output_per_s": round(self.output / seconds, 1),
            "requests": self.requests,
        }


async def stream(client, indices, tally, options, ended):
    """One of a tenant's streams."""
    while time.perf_counter() < ended:
        index, middle = next(indices), options.output_tokens
        output_tokens = random.Random(f"{options.seed}/{index}").randint(middle // 2, middle + middle // 2)
        sample = await client.run(index, Job(0.0, options.input_tokens, output_tokens), time.perf_counter())
        if sample.error:
            raise RuntimeError(f"a request failed with {sample.error}")
        tally.note(sample)


async def both_tenants(target, vocab_size, options):
    """{tenant: Tally} of one run."""
    began = time.perf_counter() + options.warmup
    ended = began + options.seconds
    tallies, clients, streams = {}, [], []
    for tenant, count in zip(TENANTS, (options.streams_a, options.streams_b), strict=True):
        output = types_pb2.OutputOptions(text=False)
        seed = f"{options.seed}/{tenant}"
        client = Client(target, options.channels, vocab_size, seed, output=output, cache_salt=tenant)
        tallies[tenant] = Tally(began, ended)
        indices = itertools.count()
        streams += [stream(client, indices, tallies[tenant], options, ended) for _ in range(count)]
        clients.append(client)
    await asyncio.gather(*streams)
    for client in clients:
        await client.close()
    return tallies


def figures(tallies, weights):
    rates = {tenant: tally.per_s() for tenant, tally in tallies.items()}

    def share(name):
        of_a, of_b = (rates[tenant][name] / weight for tenant, weight in zip(TENANTS, weights, strict=True))
        return round(of_a / of_b, 3) if of_b else None

    return {
        "tenants": rates,
        "share": share("computed_per_s"),
        "output_share": share("output_per_s"),
        "total_computed_per_s": round(sum(each["computed_per_s"] for each in rates.values()), 1),
        "total_output_per_s": round(sum(each["output_per_s"] for each in rates.values()), 1),
    }


def sentence(name, result):
    tenants = ", ".join(
        f"{tenant} {rates['computed_per_s']:.1f} computed and {rates['output_per_s']:.1f} output tokens/s"
        for tenant, rates in result["tenants"].items()
    )
    return (
        f"{name:9} A / B by weight {result['share']} (output {result['output_share']}); {tenants};"
        f" together {result['total_computed_per_s']:.1f} and {result['total_output_per_s']:.1f}"
    )


async def measure(options):
    plain = ("--model", options.model, *options.flags)
    runs = {
        "fair": (("--scheduling-policy", "fair"), (1.0, 1.0)),
        "weighted": (
            ("--scheduling-policy", "fair", "--tenant-weight", f"A={options.weight}", "--tenant-weight", "B=1"),
            (options.weight, 1.0),
        ),
        "fcfs": (("--scheduling-policy", "fcfs"), (1.0, 1.0)),
    }
    report = None
    for name in options.runs:
        flags, weights = runs[name]
        with Daemon(*plain, *flags) as daemon:
            served = await served_by(daemon.target)
            report = report or Report("fairness", options.json, seed=options.seed, **served.context)
            cpu_s, began = own_cpu_s(), time.perf_counter()
            tallies = await both_tenants(daemon.target, served.vocab_size, options)
            client_cpu = (own_cpu_s() - cpu_s) / (time.perf_counter() - began)
        result = figures(tallies, weights)
        report.add(
            sentence(name, result),
            name=name, weights=weights, daemon=daemon.flags, seconds=options.seconds, client_cpu=round(client_cpu, 3),
            load_1m=round(os.getloadavg()[0], 2), **result,
        )  # fmt: skip


def parsed():
    parser = parser_of(__doc__, input_tokens=32, output_tokens=32)
    parser.add_argument("--runs", nargs="+", choices=["fair", "weighted", "fcfs"], default=["fair", "weighted", "fcfs"])
    parser.add_argument("--streams-a", type=int, default=64)
    parser.add_argument("--streams-b", type=int, default=4)
    parser.add_argument("--weight", type=float, default=3.0, help="of A in the weighted run; B has 1")
    parser.add_argument("--seconds", type=float, default=40.0, help="of each run")
    parser.add_argument("--warmup", type=float, default=15.0, help="seconds before these")
    parser.add_argument("--channels", type=int, default=1, help="of each tenant")
    return parser.parse_args()


if __name__ == "__main__":
    uvloop.run(measure(parsed()))
