"""One generation on behalf of a gRPC call, whichever RPC carries it: the same path, so the same answer."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from google.protobuf.message import Message

from llmsrv.entry import Entry
from llmsrv.errors import ServiceError
from llmsrv.generation import Coalescing, Generation, collect
from llmsrv.params import GenerationRequest, Update
from llmsrv.serve import convert
from llmsrv.v1 import inference_pb2, types_pb2

INLINE_BYTES = 32 << 10  # larger requests are converted beside the loop, so that they hold up nobody

M = TypeVar("M", bound=Message)
R = TypeVar("R")


async def converted(service: Entry, model: str, convert_message: Callable[[M], R], message: M) -> R:
    """What the message asks for. A refusal is counted as one of a generation of the model."""
    try:
        if message.ByteSize() <= INLINE_BYTES:
            return convert_message(message)
        return await asyncio.to_thread(convert_message, message)
    except ServiceError as error:
        service.count_refusal(error, model)
        raise


async def submitted(service: Entry, message: inference_pb2.GenerateRequest, deadline_s: float | None) -> Generation:
    """The accepted generation of a request. Raises ServiceError. The caller closes it."""
    request = await converted(service, message.model, convert.generation_request, message)
    return await service.submit(replace(request, deadline_s=deadline_s))


async def submitted_stream(
    service: Entry, message: inference_pb2.GenerateStreamRequest, deadline_s: float | None
) -> Generation:
    """The same for a stream, with its options."""
    request, coalescing = await converted(service, message.request.model, _stream_parts, message)
    generation = await service.submit(replace(request, deadline_s=deadline_s))
    if coalescing is not None:
        generation.coalesce(coalescing)
    return generation


def _stream_parts(
    message: inference_pb2.GenerateStreamRequest,
) -> tuple[GenerationRequest, Coalescing | None]:
    return convert.stream_request(message), convert.coalescing(message.stream)


async def whole_answer(
    service: Entry, generation: Generation, asked: types_pb2.OutputOptions
) -> inference_pb2.GenerateResponse:
    """Waits for the end of a generation, and closes it. Raises ServiceError."""
    token_bytes = service.of(generation.model).model.tokenizer.token_bytes
    try:
        result = await collect(generation)
        if asked.logprobs or asked.prompt_logprobs:  # maybe many thousand records: built beside the loop
            return await asyncio.to_thread(convert.generate_response, result, asked, token_bytes)
        return convert.generate_response(result, asked, token_bytes)
    finally:
        generation.close()


async def stream_part(
    service: Entry, generation: Generation, update: Update, asked: types_pb2.OutputOptions
) -> inference_pb2.GenerateStreamResponse:
    """One message of a stream."""
    token_bytes = service.of(generation.model).model.tokenizer.token_bytes
    facts = (update, generation.request_id, generation.model, asked, token_bytes)
    if update.prompt is not None and asked.prompt_logprobs:
        return await asyncio.to_thread(convert.stream_response, *facts)
    return convert.stream_response(*facts)
