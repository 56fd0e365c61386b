"""Every field of every request of every service is honoured or refused with its path: none is ignored.

The fields are found in the descriptors. SHOWN says of each that is honoured what shows its effect, beside which other
fields, and a real server over a scripted engine has to show it: the same request without the field must not. A field
that is not in SHOWN must be refused. So a field that is added to the protos fails here until somebody decides.
"""

import asyncio
import functools
import importlib
from dataclasses import dataclass, field
from types import SimpleNamespace

import grpc.aio
import pytest
from fakes import EOS, BracketTemplate, ByteTokenizer, FakeOutput, fake_model, finish
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message_factory import GetMessageClass
from grpc_served import Served, details, status_of

from llmsrv.errors import Code
from llmsrv.v1 import admin_pb2, inference_pb2, model_pb2


@dataclass
class Shown:
    """`by`: what shows a field, as a path into what a call leaves behind. `beside`: the rest of the request."""

    by: str
    value: object = None  # of the field, where the usual one shows nothing
    beside: dict = field(default_factory=dict)


@dataclass
class ByTest:
    """The test of a field whose effect needs more than one call to be seen."""

    name: str


CHAT = {"chat": {"messages": [{"role": "user", "content": "hi"}]}}
ASSISTANT = {"chat": {"messages": [{"role": "assistant", "content": "hi"}]}}
CHAT_FIELDS = {
    "chat.messages.role": Shown("prompt", "system", CHAT),
    "chat.messages.content": Shown("prompt", beside=CHAT),
    "chat.messages.name": Shown("prompt", beside=CHAT),
    "chat.messages.reasoning": Shown("prompt", beside=CHAT),
    "chat.template_kwargs": Shown("prompt", {"k": 1}, CHAT),
    "chat.add_generation_prompt": Shown("prompt", beside=CHAT),
    "chat.continue_final_message": Shown("prompt", beside=ASSISTANT),
}
GENERATE = {
    "model": Shown("error.NOT_FOUND"),
    "request_id": Shown("answer.requestId", beside={"request_id": "before"}),
    "text": Shown("prompt"),
    "token_ids.ids": Shown("prompt"),
    **CHAT_FIELDS,
    **{
        f"sampling.{name}": Shown(f"params.{name}")
        for name in (
            *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
            *("n", "logit_bias", "allowed_token_ids"),
        )
    },
    "sampling.seed": Shown("params.seed", beside={"sampling": {"seed": "9"}}),
    "stopping.max_tokens": Shown("params.max_tokens"),
    "stopping.min_tokens": Shown("params.min_tokens"),
    "stopping.stop_strings": Shown("answer.completions.0.finish.stopString", "b"),
    "stopping.stop_token_ids": Shown("params.stop_token_ids"),
    "stopping.ignore_eos": Shown("params.ignore_eos"),
    "stopping.include_stop": Shown("answer.completions.0.tokenIds", beside={"output": {"token_ids": True}}),
    "stopping.time_limit": Shown("params.time_limit_s"),
    "output.text": Shown("answer.completions.0.text"),
    "output.token_ids": Shown("answer.completions.0.tokenIds"),
    "output.logprobs": Shown("answer.completions.0.logprobs"),
    "output.top_logprobs": Shown("params.top_logprobs", beside={"output": {"logprobs": True}}),
    "output.prompt_token_ids": Shown("answer.prompt.tokenIds"),
    "output.prompt_logprobs": Shown("answer.prompt.logprobs"),
    "output.skip_special_tokens": Shown("answer.completions.0.text", beside={"stopping": {"include_stop": True}}),
    "priority": Shown("engine.priority"),
    "queue_timeout": Shown("engine.queue_timeout_s"),
    "cache_salt": Shown("engine.cache_salt"),
    "bypass_prefix_cache": Shown("engine.bypass_prefix_cache"),
    "truncate_prompt_tokens": Shown("prompt"),
}
STREAM = {
    "max_coalesce_delay": ByTest("test_grpc_streams.test_tokens_are_held_for_so_long"),
    "max_coalesce_tokens": ByTest("test_grpc_streams.test_tokens_are_held_until_there_are_enough"),
}


def inside(prefix, table):
    """The same fields where they are a part of another message."""

    def wrapped(beside):
        for name in reversed(prefix):
            beside = {name.rstrip("*"): [beside] if name.endswith("*") else beside}
        return beside

    start = ".".join(prefix).replace("*", "")
    return {
        f"{start}.{path}": each if isinstance(each, ByTest) else Shown(each.by, each.value, wrapped(each.beside))
        for path, each in table.items()
    }


SHOWN = {
    "Generate": GENERATE,
    "GenerateStream": inside(["request"], GENERATE) | inside(["stream"], STREAM),
    "BatchGenerate": inside(["requests*"], GENERATE),
    "GenerateSession": inside(["start", "request"], GENERATE)
    | inside(["start", "stream"], STREAM)
    | {"cancel_request_id": ByTest("test_grpc_session.test_a_cancel_frees_one_request_and_no_other")},
    "Embed": {},
    "Tokenize": {
        "model": Shown("error.NOT_FOUND"),
        "text": Shown("answer.tokenIds"),
        **{path: Shown("answer.tokenIds", each.value, each.beside) for path, each in CHAT_FIELDS.items()},
        "add_special_tokens": Shown("answer.tokenIds"),
        "pieces": Shown("answer.pieces"),
    },
    "Detokenize": {
        "model": Shown("error.NOT_FOUND"),
        "token_ids": Shown("answer.text", 97),
        "skip_special_tokens": Shown("answer.text", beside={"token_ids": [97, EOS]}),
    },
    "ListModels": {},
    "GetModel": {"name": Shown("error.NOT_FOUND")},
    "GetServerInfo": {"model": Shown("error.NOT_FOUND")},
    "GetStats": {"model": Shown("error.NOT_FOUND")},
    "WatchStats": {
        "interval": ByTest("test_grpc_drain.test_samples_come_as_often_as_asked"),
        "model": Shown("error.NOT_FOUND"),
    },
    "Abort": {
        "ids.request_ids": ByTest("test_grpc_drain.test_abort_ends_those_that_are_named"),
        "all": ByTest("test_grpc_drain.test_abort_ends_those_that_are_named"),
    },
    "Drain": {"timeout": ByTest("test_grpc_drain.test_what_is_left_after_the_timeout_is_aborted")},
    "Resume": {},
    "ClearPrefixCache": {"model": Shown("error.NOT_FOUND")},
}
METHODS = {
    method.name: (service.name, method)
    for module in (inference_pb2, model_pb2, admin_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
# What stands in a request that sets none of these: without it there would be nothing to do.
PROMPT = {"text": "hello"}
NEEDED = {
    "Generate": PROMPT,
    "GenerateStream": {"request": PROMPT},
    "BatchGenerate": {"requests": [PROMPT]},
    "GenerateSession": {"start": {"request": PROMPT}},
    "Tokenize": PROMPT,
}
WHOLE = {"google.protobuf.Duration", "google.protobuf.Struct"}


def leaves(descriptor, prefix=""):
    """Paths of all fields, down to those without fields of their own."""
    for each in descriptor.fields:
        path = prefix + each.name
        kind = each.message_type
        if kind is None or kind.full_name in WHOLE or kind.GetOptions().map_entry or not kind.fields:
            yield path
        else:
            yield from leaves(kind, path + ".")


def put(message, path, value):
    """Sets the field at `path` to something other than its default; of a list the first element."""
    name, _, rest = path.partition(".")
    described = message.DESCRIPTOR.fields_by_name[name]
    kind = described.message_type
    if rest:
        inner = getattr(message, name)
        if described.is_repeated:
            inner = inner[0] if inner else inner.add()
        put(inner, rest, value)
    elif kind is None:
        put_scalar(message, described, value)
    elif kind.GetOptions().map_entry:
        getattr(message, name)[5] = 1.0
    elif kind.full_name == "google.protobuf.Struct":
        getattr(message, name).update(value or {"type": "object"})
    elif kind.full_name == "google.protobuf.Duration":
        getattr(message, name).FromMilliseconds(250)
    elif described.is_repeated:
        getattr(message, name).add()
    else:
        getattr(message, name).SetInParent()


def put_scalar(message, described, value):
    usual = {
        FieldDescriptor.CPPTYPE_STRING: "x",
        FieldDescriptor.CPPTYPE_BOOL: not described.has_presence,  # those with presence are true by default
        FieldDescriptor.CPPTYPE_FLOAT: 0.5,
    }.get(described.cpp_type, 3)
    value = usual if value is None else value
    if described.is_repeated:
        getattr(message, described.name).append(value)
    else:
        setattr(message, described.name, value)


def request_for(rpc, path):
    """The request without the field: what it needs, and beside what the field shows."""
    shown = SHOWN[rpc].get(path)
    kind = GetMessageClass(METHODS[rpc][1].input_type)
    message = ParseDict(NEEDED.get(rpc, {}), kind())
    beside = ParseDict(shown.beside if isinstance(shown, Shown) else {}, kind())
    if rpc == "BatchGenerate":
        for each in beside.requests:
            message.requests[0].MergeFrom(each)
    else:
        message.MergeFrom(beside)
    return message


# --- the server, and what a call leaves behind ---


class Tokenizer(ByteTokenizer):
    """Begins with a special token, if asked to."""

    def encode(self, text, add_special_tokens=True):
        return [1] * add_special_tokens + super().encode(text)


class Template(BracketTemplate):
    """Renders everything."""

    def render(self, messages, **kwargs):
        return repr([sorted(each.items()) for each in messages]) + repr(sorted(kwargs.items()))


class Observed(Served):
    """A server whose engine answers each request with "ab" and the end of sequence, at once."""

    def made_model(self):
        return fake_model(self.engine, config=self.config, tokenizer=Tokenizer(), chat_template=Template())

    async def observe(self, rpc, message):
        """What the call leaves behind: the engine's request, the answer, the error."""
        self.left = {}
        answering = asyncio.create_task(self._answer())
        try:
            await {
                "GenerateStream": self._stream,
                "BatchGenerate": self._batch,
                "GenerateSession": self._session,
                "WatchStats": self._first,
                "Drain": self._first,
            }.get(rpc, self._unary)(self._stub(rpc), message)
        except grpc.aio.AioRpcError as error:
            self._note_error(status_of(error))
        finally:
            answering.cancel()
        return self.left

    def _stub(self, rpc):
        stubs = {"InferenceService": self.inference, "ModelService": self.models, "AdminService": self.admin}
        return getattr(stubs[METHODS[rpc][0]], rpc)

    async def _unary(self, call, message):
        self.left["answer"] = MessageToDict(await call(message))

    async def _first(self, call, message):
        await call(message).read()

    async def _stream(self, call, message):
        self._note_stream([each async for each in call(message)])

    async def _batch(self, call, message):
        (answer,) = [each async for each in call(message)]
        if answer.HasField("error"):
            self._note_error(answer.error)
        self.left["answer"] = MessageToDict(answer.response)

    async def _session(self, call, message):
        if message.HasField("start") and not message.start.request.request_id:
            message.start.request.request_id = "needed"
        session = call()
        await session.write(message)
        await session.done_writing()
        items = [item async for each in session for item in each.items]
        for each in items:
            if each.HasField("error"):
                self._note_error(each.error)
        self._note_stream([each.response for each in items])

    def _note_stream(self, messages):
        """As the unary answer has it."""
        merged = inference_pb2.GenerateResponse(completions=[inference_pb2.Completion()])
        (completion,) = merged.completions
        for each in messages:
            if each.HasField("start"):
                merged.request_id = each.start.request_id
                merged.prompt.CopyFrom(each.start.prompt)
            for delta in (delta for delta in each.deltas if delta.index == 0):
                completion.text += delta.text
                completion.token_ids.extend(delta.token_ids)
                completion.logprobs.extend(delta.logprobs)
                completion.finish.CopyFrom(delta.finish)
        self.left["answer"] = MessageToDict(merged)

    def _note_error(self, status):
        found = details(status)
        fields = [each.field for each in found["BadRequest"].field_violations] if "BadRequest" in found else []
        self.left["error"] = {Code(status.code).name: fields, "reason": found["ErrorInfo"].reason}

    async def _answer(self):
        answered = len(self.engine.submitted)
        while True:
            await asyncio.sleep(0.001)
            if len(self.engine.submitted) > answered:
                answered += 1
                self._end(answered, self.engine.submitted[answered])

    def _end(self, key, request):
        self.left |= {"engine": vars(request), "params": request.params, "prompt": request.prompt}
        entry = SimpleNamespace(token_id=97, logprob=-1.0, rank=1, top=())
        entries = [entry] if request.params.logprobs else []
        prompt = [entry] * (len(request.prompt) - 1) if request.params.prompt_logprobs else []
        outputs = [FakeOutput(key, 0, [97], logprobs=entries, prompt_logprobs=prompt)]
        outputs.append(FakeOutput(key, 0, [98], logprobs=entries))
        ended = finish("stop", stop_token=EOS, by_eos=True)
        outputs += [FakeOutput(key, i, [EOS], logprobs=entries, finish=ended) for i in range(request.params.n)]
        outputs[-1].final = True
        self.engine.push(outputs)


@functools.cache
def observed(rpc):
    """For each field of the RPC's request: what a call leaves behind twice without it and once with it."""

    async def body():
        found = {}
        async with Observed() as served:
            for path in leaves(METHODS[rpc][1].input_type):
                without, again, message = (request_for(rpc, path) for _ in range(3))
                put(message, path, getattr(SHOWN[rpc].get(path), "value", None))
                found[path] = [await served.observe(rpc, each) for each in (without, again, message)]
                served.engine.live.clear()
        return found

    return asyncio.run(asyncio.wait_for(body(), 60))


def looked_up(left, path):
    for name in path.split("."):
        if left is None:
            return None
        if isinstance(left, list):
            left = left[int(name)] if int(name) < len(left) else None
        else:
            left = left.get(name) if isinstance(left, dict) else getattr(left, name)
    return left


FIELDS = [(rpc, path) for rpc, (_, method) in METHODS.items() for path in leaves(method.input_type)]


@pytest.mark.parametrize(("rpc", "path"), FIELDS, ids=[f"{rpc}-{path}" for rpc, path in FIELDS])
def test_every_field(rpc, path):
    shown = SHOWN[rpc].get(path)
    if isinstance(shown, ByTest):
        module, _, name = shown.name.partition(".")
        assert callable(getattr(importlib.import_module(module), name))
        return
    without, again, with_field = observed(rpc)[path]
    if shown is not None:
        assert looked_up(without, shown.by) == looked_up(again, shown.by), "it changes by itself"
        assert looked_up(with_field, shown.by) != looked_up(without, shown.by), "nothing shows it"
        return
    error = with_field["error"]
    if error["reason"] == "RPC_NOT_IMPLEMENTED":
        return
    (named,) = error["UNIMPLEMENTED"]
    named = named.replace("[0]", "")
    inner = path.removeprefix("requests.").removeprefix("start.").removeprefix("request.")
    assert inner == named or inner.startswith(named + "."), error


def test_every_rpc_and_no_other_field_is_listed():
    assert set(SHOWN) == set(METHODS)
    for rpc, table in SHOWN.items():
        assert set(table) <= set(leaves(METHODS[rpc][1].input_type)), rpc


@pytest.mark.parametrize("rpc", METHODS)
def test_a_field_that_only_a_newer_client_knows(rpc):
    async def body():
        async with Observed() as served:
            message = request_for(rpc, None)
            message.MergeFromString(b"\xf8\x06\x01")
            return await served.observe(rpc, message)

    error = asyncio.run(asyncio.wait_for(body(), 30))["error"]
    assert error["UNIMPLEMENTED"] == ["111"] or error["reason"] == "RPC_NOT_IMPLEMENTED"
