"""What the load generators share: clients of a daemon over both protocols, and what they print. The rest: llmsrv.load.

Prompts are random token ids from the seed, greedy, ignore_eos: every request generates exactly what was asked for.

The words for latencies (ttft_ms, tpot_ms, itl_ms, e2e_ms, lag_ms) are defined in llmsrv/load/figures.py and printed by
`llmsrv bench`. They are over the requests that ended well, and
  output_tokens_per_s   generated tokens / (first request sent to last token received)
"""

import os
from dataclasses import dataclass

import grpc
import grpc.aio

from llmsrv.load.figures import percentiles, summary
from llmsrv.load.grpc_client import GrpcClient, generate_request
from llmsrv.load.http_client import OpenAIClient
from llmsrv.load.jobs import Job, Prompts, poisson_jobs, trace_jobs
from llmsrv.load.jobs import random_ids as ids_of_range
from llmsrv.load.loops import closed_loop, open_loop
from llmsrv.load.progress import Progress
from llmsrv.remote import Remote
from llmsrv.v1 import admin_pb2, admin_pb2_grpc, model_pb2, model_pb2_grpc

__all__ = (
    "Client",
    "HttpClient",
    "Job",
    "Progress",
    "closed_loop",
    "generate_request",
    "open_loop",
    "percentiles",
    "poisson_jobs",
    "random_ids",
    "sentence",
    "served_by",
    "summary",
    "trace_jobs",
)


def random_ids(seed, count, vocab_size):
    return ids_of_range(str(seed), count, range(vocab_size))


class Client(GrpcClient):
    """Over gRPC. `fields`: what else stands in every GenerateRequest."""

    def __init__(self, target, channels, vocab_size, seed, **fields):
        super().__init__(Remote(target), Prompts(seed, vocab_size), channels=channels, **fields)


class HttpClient(OpenAIClient):
    """Over HTTP. A connection is used again by later requests, unless `reuse` is off."""

    def __init__(self, target, vocab_size, seed, *, reuse=True, **fields):
        fields = {"ignore_eos": True, **fields}
        super().__init__(f"http://{target}/v1", Prompts(seed, vocab_size), reuse=reuse, fields=fields)


def sentence(label, figures):
    """One result for people."""
    late = ", ".join(
        f"{name} p50/p99 {figures[key]['p50']:.1f}/{figures[key]['p99']:.1f} ms"
        for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("ITL", "itl_ms"))
        if figures[key]
    )
    failed = f", failed: {figures['errors']}" if figures["errors"] else ""
    return f"{label}: {figures['output_tokens_per_s']:.1f} output tokens/s, {late}{failed}"


@dataclass(frozen=True)
class Served:
    """What a daemon says of itself."""

    context: dict  # for Report
    vocab_size: int
    max_running: int
    max_waiting: int


async def served_by(target):
    async with grpc.aio.insecure_channel(target) as channel:
        model = (await model_pb2_grpc.ModelServiceStub(channel).GetModel(model_pb2.GetModelRequest())).model
        info = await admin_pb2_grpc.AdminServiceStub(channel).GetServerInfo(admin_pb2.GetServerInfoRequest())
    context = {
        "model": model.name,
        "dtype": model.weight_dtype,
        "device": ", ".join(info.devices),
        "cores": os.cpu_count(),
    }
    return Served(context, model.vocab_size, info.max_running, info.max_waiting)
