"""The gRPC listener: three services over one Entry, health, reflection.

It listens before the model is loaded, so that probes and clients get an answer: until `serve` is called every
generation is UNAVAILABLE. Thread rule: one event loop, for gRPC and the service alike (two loops on grpc.aio in one
process disturb each other).

A cancelled call reaches a handler as CancelledError, as GeneratorExit or not at all when it is never resumed. So a
generation is closed in `finally` and from the call's done callback; closing twice is harmless.
"""

import asyncio
import functools
import logging
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from grpc_health.v1 import health_pb2, health_pb2_grpc

import llmsrv
from llmsrv.commit import built_commit
from llmsrv.config import ServeConfig
from llmsrv.engine import LoadedModel
from llmsrv.errors import Code, ServiceError, Violation
from llmsrv.generation import Generation
from llmsrv.serve import convert
from llmsrv.serve.batch import Batch
from llmsrv.serve.calls import stream_part, submitted, submitted_stream, whole_answer
from llmsrv.serve.drain import Drainer, progress
from llmsrv.serve.grpc_endpoint import Endpoint
from llmsrv.serve.health import HealthReporter
from llmsrv.serve.listener import Listener
from llmsrv.serve.recent_stats import recent_stats
from llmsrv.serve.security import Security
from llmsrv.serve.session import Session
from llmsrv.serve.stall import StallWatch
from llmsrv.serve.status import abort, internal_error, told
from llmsrv.service import GenerationService, State, Tokenized
from llmsrv.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
)

logger = logging.getLogger(__name__)

WATCH_MIN_S, WATCH_DEFAULT_S = 0.1, 1.0
STOP_GRACE_S = 0.5

Context = Any  # grpc.aio.ServicerContext, whose type parameters the generated code does not have
StateSample = Any  # the core's StateStats: serve/ does not touch the core
Unary = Callable[[Any, Any, Context], Awaitable[Any]]
Streaming = Callable[[Any, Any, Context], AsyncGenerator[Any, None]]


def _unary(handler: Unary) -> Unary:
    """Turns a handler's ServiceError into a rich status, and a bug into INTERNAL without a traceback."""

    @functools.wraps(handler)
    async def wrapped(self: Any, request: Any, context: Context) -> Any:  # noqa: ANN401
        try:
            return await handler(self, request, context)
        except ServiceError as error:
            status = told(error)
        except Exception:
            logger.exception("%s failed", handler.__name__)
            status = told(internal_error())
        del request  # see abort()
        return await abort(context, status)

    return wrapped


def _streaming(handler: Streaming) -> Streaming:
    """The same for a handler that yields, and an end for a reader that takes nothing."""

    @functools.wraps(handler)
    async def wrapped(self: Any, request: Any, context: Context) -> AsyncGenerator[Any, None]:  # noqa: ANN401
        try:
            with self._server.stalls.watched(context) as stream:
                async with aclosing(handler(self, request, context)) as messages:
                    async for message in messages:
                        await stream.give()
                        yield message
                        stream.note_taken()
            return
        except ServiceError as error:
            status = told(error)
        except Exception:
            logger.exception("%s failed", handler.__name__)
            status = told(internal_error())
        del request  # see abort()
        await abort(context, status)

    return wrapped


class GrpcServer(Listener):
    """The listener and what its services share."""

    def __init__(self, config: ServeConfig, security: Security | None = None) -> None:
        """`security`: what it shares with other listeners. Raises ValueError without one, as Security() does."""
        self._security = security or Security(config)
        super().__init__(self._security.call_errors)
        self.config = config
        self.start_time = time.time()
        self._health = HealthReporter(lambda: self.state)
        self.drainer = Drainer(self._health.tell, config.drain_withdrawal)
        self.stalls = StallWatch(config.stream_stall_timeout)
        self._public = self._admin = Endpoint(config.host, config.port, config, self._security, self.call_errors)
        if config.separates_admin:
            self._admin = Endpoint(
                config.admin_host, config.admin_port or 0, config, self._security, self.call_errors, admin=True
            )
        self._add_services()

    def _add_services(self) -> None:
        self._public.add(inference_pb2, inference_pb2_grpc.add_InferenceServiceServicer_to_server, _Inference(self))
        self._admin.add(admin_pb2, admin_pb2_grpc.add_AdminServiceServicer_to_server, _Admin(self))
        models = _Models(self)
        for endpoint in self._endpoints:
            endpoint.add(model_pb2, model_pb2_grpc.add_ModelServiceServicer_to_server, models)
            endpoint.add(health_pb2, health_pb2_grpc.add_HealthServicer_to_server, self._health.servicer)
        if self.config.channelz:
            self._admin.add_channelz()
        for endpoint in self._endpoints:
            if self.config.reflection or endpoint is not self._public:
                endpoint.add_reflection()

    @property
    def _endpoints(self) -> list[Endpoint]:
        return [self._public] if self._admin is self._public else [self._public, self._admin]

    @property
    def address(self) -> str:
        """Where everybody's services are; with the port once it is known."""
        return self._public.address

    @property
    def admin_address(self) -> str | None:
        """Where AdminService is, if it is not beside the others."""
        return None if self._admin is self._public else self._admin.address

    async def start(self) -> int:
        """Listens and returns the port, which says nothing on a Unix socket. Raises OSError when it cannot listen."""
        port, *_ = [endpoint.bind() for endpoint in self._endpoints]
        await self._health.start()
        self.stalls.start()
        for endpoint in self._endpoints:
            await endpoint.start()
        return port

    async def serve(self, *services: GenerationService) -> None:
        """From now on requests are taken. The first service is the default."""
        await super().serve(*services)
        await self._health.tell()

    async def drain(self, timeout_s: float) -> None:
        """Health says NOT_SERVING, new requests are refused, running ones get `timeout_s`."""
        if self._service is not None:
            await self.drainer.finish(self._service, timeout_s)

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Stops listening. Open calls (health and stats watchers) are cut after the grace."""
        await self._health.stop()
        await asyncio.gather(*(endpoint.stop(grace_s) for endpoint in self._endpoints))
        await self.stalls.stop()


class _Inference(inference_pb2_grpc.InferenceServiceServicer):
    def __init__(self, server: GrpcServer) -> None:
        self._server = server

    @_unary
    async def Generate(self, request: inference_pb2.GenerateRequest, context: Context) -> Message:
        service = self._server.service
        generation = await submitted(service, request, context.time_remaining())
        _close_when_done(context, generation)
        return await whole_answer(service, generation, request.output)

    @_streaming
    async def GenerateStream(
        self, request: inference_pb2.GenerateStreamRequest, context: Context
    ) -> AsyncGenerator[Message, None]:
        service = self._server.service
        generation = await submitted_stream(service, request, context.time_remaining())
        _close_when_done(context, generation)
        try:
            async for update in generation:
                yield await stream_part(service, generation, update, request.request.output)
        finally:
            generation.close()

    @_streaming
    async def BatchGenerate(
        self, request: inference_pb2.BatchGenerateRequest, context: Context
    ) -> AsyncGenerator[Message, None]:
        convert.refuse_unknown_here(request)
        batch = Batch(self._server.service, request.requests, context.time_remaining)
        _close_when_done(context, batch)
        try:
            async for answer in batch.answers():
                yield answer
        finally:
            batch.close()

    @_streaming
    async def GenerateSession(
        self, requests: AsyncIterator[inference_pb2.GenerateSessionRequest], context: Context
    ) -> AsyncGenerator[Message, None]:
        session = Session(self._server.service, requests, context.time_remaining)
        _close_when_done(context, session)
        try:
            async for message in session.messages():
                yield message
        finally:
            session.close()

    @_unary
    async def Tokenize(self, request: inference_pb2.TokenizeRequest, context: Context) -> Message:
        add_special = request.add_special_tokens if request.HasField("add_special_tokens") else None
        tokenized = await self._server.service.tokenize(
            convert.tokenize_prompt(request),
            model=request.model,
            add_special_tokens=add_special,
            offsets=request.pieces,
        )
        return inference_pb2.TokenizeResponse(
            token_ids=tokenized.token_ids,
            pieces=self._pieces(tokenized, request.model),
            rendered_text=tokenized.rendered_text,
        )

    def _pieces(self, tokenized: Tokenized, model: str) -> list[inference_pb2.TokenizeResponse.Piece]:
        token_bytes = self._server.service.of(model).model.tokenizer.token_bytes
        return [
            inference_pb2.TokenizeResponse.Piece(token_bytes=token_bytes(token_id), begin=begin, end=end)
            for token_id, (begin, end) in zip(tokenized.token_ids, tokenized.offsets, strict=False)
        ]

    @_unary
    async def Detokenize(self, request: inference_pb2.DetokenizeRequest, context: Context) -> Message:
        convert.refuse_unknown(request)
        skip_special = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        text = await self._server.service.detokenize(
            request.token_ids, model=request.model, skip_special_tokens=skip_special
        )
        return inference_pb2.DetokenizeResponse(text=text)

    @_unary
    async def Embed(self, request: inference_pb2.EmbedRequest, context: Context) -> Message:
        raise _no_rpc("Embed")


class _Models(model_pb2_grpc.ModelServiceServicer):
    def __init__(self, server: GrpcServer) -> None:
        self._server = server

    @_unary
    async def ListModels(self, request: model_pb2.ListModelsRequest, context: Context) -> Message:
        convert.refuse_unknown(request)
        return model_pb2.ListModelsResponse(models=[_described(each.model) for each in self._server.service.services])

    @_unary
    async def GetModel(self, request: model_pb2.GetModelRequest, context: Context) -> Message:
        convert.refuse_unknown(request)
        return model_pb2.GetModelResponse(model=_described(self._server.service.named(request.name).model))


class _Admin(admin_pb2_grpc.AdminServiceServicer):
    def __init__(self, server: GrpcServer) -> None:
        self._server = server

    @_unary
    async def GetServerInfo(self, request: admin_pb2.GetServerInfoRequest, context: Context) -> Message:
        convert.refuse_unknown(request)
        state = self._server.state
        info = admin_pb2.GetServerInfoResponse(
            version=llmsrv.__version__,
            commit=built_commit(),
            backend="cpu",
            start_time=_timestamp(self._server.start_time),
            state=_STATES[state],
        )
        if state is not State.STARTING:
            model = self._server.service.named(request.model).model
            info.devices.append(model.engine.device)
            info.kv_blocks = model.plan.kv_blocks
            info.kv_block_tokens = model.config.block_size
            info.max_running = model.config.max_num_seqs
            info.max_waiting = model.config.max_queued_requests
            info.max_batch_tokens = model.config.max_num_batched_tokens
        return info

    @_unary
    async def GetStats(self, request: admin_pb2.GetStatsRequest, context: Context) -> Message:
        convert.refuse_unknown(request)
        return admin_pb2.GetStatsResponse(stats=_stats(self._server.service.named(request.model)))

    @_streaming
    async def WatchStats(self, request: admin_pb2.WatchStatsRequest, context: Context) -> AsyncGenerator[Message, None]:
        convert.refuse_unknown(request)
        interval_s = request.interval.ToMilliseconds() / 1000 if request.HasField("interval") else WATCH_DEFAULT_S
        if interval_s < WATCH_MIN_S:
            raise ServiceError.invalid([Violation("interval", "must be at least 100 ms")])
        service = self._server.service.named(request.model)
        while True:
            yield admin_pb2.WatchStatsResponse(stats=_stats(service))
            if self._server.state is State.DRAINED and self._server.drainer.finishing:
                return
            await asyncio.sleep(interval_s)

    @_unary
    async def Abort(self, request: admin_pb2.AbortRequest, context: Context) -> Message:
        convert.refuse_unknown(request)
        target = request.WhichOneof("target")
        if target is None:
            raise ServiceError.invalid([Violation("target", "one of its fields must be set")])
        service = self._server.service
        aborted = service.abort_all() if target == "all" else service.abort_ids(request.ids.request_ids)
        return admin_pb2.AbortResponse(aborted_request_ids=aborted)

    @_streaming
    async def Drain(self, request: admin_pb2.DrainRequest, context: Context) -> AsyncGenerator[Message, None]:
        service = self._server.service
        self._server.drainer.begin(service, convert.drain_timeout(request))
        async for state, in_flight in progress(service):
            yield admin_pb2.DrainResponse(state=_STATES[state], in_flight=in_flight)

    @_unary
    async def Resume(self, request: admin_pb2.ResumeRequest, context: Context) -> Message:
        convert.refuse_unknown(request)
        service = self._server.service
        await self._server.drainer.resume(service)
        return admin_pb2.ResumeResponse(state=_STATES[service.state])

    @_unary
    async def ClearPrefixCache(self, request: admin_pb2.ClearPrefixCacheRequest, context: Context) -> Message:
        convert.refuse_unknown(request)
        freed = await self._server.service.clear_prefix_cache(request.model)
        return admin_pb2.ClearPrefixCacheResponse(blocks_freed=freed)


_STATES = {
    State.STARTING: admin_pb2.SERVER_STATE_STARTING,
    State.SERVING: admin_pb2.SERVER_STATE_SERVING,
    State.STALLED: admin_pb2.SERVER_STATE_STALLED,
    State.DRAINING: admin_pb2.SERVER_STATE_DRAINING,
    State.DRAINED: admin_pb2.SERVER_STATE_DRAINED,
    State.FAILED: admin_pb2.SERVER_STATE_FAILED,
}


def _described(model: LoadedModel) -> model_pb2.Model:
    return model_pb2.Model(
        name=model.name,
        architecture=model.architecture,
        max_context_tokens=model.max_model_len,
        vocab_size=model.vocab_size,
        eos_token_ids=model.eos_token_ids,
        weight_dtype=model.weight_dtype,
        kv_cache_dtype=model.config.kv_cache_dtype,
        quantization=model.quantization,
        has_chat_template=model.chat_template is not None,
        default_sampling=convert.sampling_params(model.resolve(model.defaults)),
        max_top_logprobs=model.config.max_logprobs,
        max_n=model.config.max_choices,
        tokenizer_sha256=model.tokenizer.sha256,
    )


def _stats(service: GenerationService) -> admin_pb2.EngineStats:
    sample = service.stats()
    return admin_pb2.EngineStats(
        time=_timestamp(time.time()),
        state=_STATES[service.state],
        running=sample.running,
        waiting=sample.waiting,
        kv_blocks_used=sample.kv_blocks_held,
        kv_blocks_total=sample.kv_blocks_total,
        kv_blocks_cached=sample.kv_blocks_cached,
        steps=sample.steps,
        prompt_tokens=sample.prompt_tokens,
        generation_tokens=sample.generation_tokens,
        prefix_cache_queries=sample.prefix_queries,
        prefix_cache_hits=sample.prefix_hits,
        preemptions=sample.preemptions,
        requests=service.outcomes,
        kv_blocks_free=sample.kv_blocks_free,
        sequence_states={name: _state_stats(each) for name, each in sample.states.items()},
        recomputed_tokens=sample.recomputed_tokens,
        swap_outs=sample.swap_outs,
        swap_ins=sample.swap_ins,
        swapped_out_blocks=sample.swapped_out_blocks,
        swapped_in_blocks=sample.swapped_in_blocks,
        swap_blocks_held=sample.swap_blocks_held,
        swap_blocks_total=sample.swap_blocks_total,
        copied_prefix_tokens=sample.copied_prefix_tokens,
        utilization=sample.utilization,
        swap_bytes_per_second=sample.swap_bytes_per_second,
        step_time_per_token=convert.duration(sample.step_seconds_per_token),
        oldest_wait=convert.duration(sample.oldest_wait_s),
        deadline_drops=service.outcomes.get(Code.DEADLINE_EXCEEDED.name, 0),
        recent=recent_stats(service.latencies.recent, time.monotonic()),
    )


def _close_when_done(context: Context, owner: Generation | Batch | Session) -> None:
    """For the call whose handler is never resumed. grpc.aio keeps the callback until the garbage collector comes by."""
    held = weakref.ref(owner)

    def close(_: object) -> None:
        found = held()
        if found is not None:
            found.close()

    context.add_done_callback(close)


def _state_stats(stats: StateSample) -> admin_pb2.SequenceStateStats:
    return admin_pb2.SequenceStateStats(
        current=stats.current, entered=stats.entered, time=convert.duration(stats.seconds)
    )


def _no_rpc(name: str) -> ServiceError:
    return ServiceError(Code.UNIMPLEMENTED, f"{name} is not implemented in this version", reason="RPC_NOT_IMPLEMENTED")


def _timestamp(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromNanoseconds(int(seconds * 1e9))
    return stamp
