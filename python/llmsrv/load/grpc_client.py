"""Requests over llmsrv.v1."""

import itertools
import time
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from llmsrv.load.figures import Sample
from llmsrv.load.jobs import Job, Prompts
from llmsrv.remote import Remote, open_channel
from llmsrv.v1 import inference_pb2, inference_pb2_grpc, types_pb2


def generate_request(
    ids: Sequence[int],
    output_tokens: int,
    *,
    ignore_eos: bool = True,
    **fields: Any,  # noqa: ANN401
) -> inference_pb2.GenerateRequest:
    """Greedy; with ignore_eos it generates exactly what is asked for."""
    return inference_pb2.GenerateRequest(
        token_ids=types_pb2.TokenIds(ids=ids),
        sampling=types_pb2.SamplingParams(temperature=0.0),
        stopping=types_pb2.StoppingParams(max_tokens=output_tokens, ignore_eos=ignore_eos),
        **fields,
    )


class GrpcClient:
    """Sends jobs over a few channels: one TCP connection is not the bottleneck that is measured.

    `fields`: what else stands in every GenerateRequest.
    """

    def __init__(
        self,
        remote: Remote,
        prompts: Prompts,
        *,
        channels: int = 2,
        ignore_eos: bool = True,
        timeout_s: float | None = None,
        **fields: Any,  # noqa: ANN401
    ) -> None:
        self._channels = [open_channel(remote, [("llmsrv.channel", i)]) for i in range(channels)]
        self._stubs = itertools.cycle([inference_pb2_grpc.InferenceServiceStub(each) for each in self._channels])
        self._metadata = remote.metadata
        self._prompts = prompts
        self._ignore_eos = ignore_eos
        self._timeout_s = timeout_s
        self._fields = fields

    async def run(self, index: int, job: Job, planned: float) -> Sample:
        """The job, with the prompt of its index. Failures are in the sample."""
        return await self.send(self._prompts.ids(index, job), job.output_tokens, planned)

    async def send(self, ids: Sequence[int], output_tokens: int, planned: float) -> Sample:
        """One request with this prompt."""
        message = generate_request(ids, output_tokens, ignore_eos=self._ignore_eos, **self._fields)
        request = inference_pb2.GenerateStreamRequest(request=message)
        sample = Sample(planned, time.perf_counter(), input_tokens=len(ids))
        try:
            call = next(self._stubs).GenerateStream(request, timeout=self._timeout_s, metadata=self._metadata)
            async for answer in call:
                tokens = sum(delta.token_count for delta in answer.deltas)
                if tokens:
                    sample.arrivals.append((time.perf_counter(), tokens))
        except grpc.aio.AioRpcError as error:
            sample.error, sample.message = error.code().name, error.details() or ""
        sample.ended = time.perf_counter()
        return sample

    async def close(self) -> None:
        """Closes its channels."""
        for channel in self._channels:
            await channel.close()
