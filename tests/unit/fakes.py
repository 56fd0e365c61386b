"""An engine whose tokens a test writes, and a tokenizer whose ids are bytes: for tests of what lies above the core."""

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

from llmsrv.config import ServeConfig
from llmsrv.engine import LoadedModel
from llmsrv.errors import Code, ServiceError, Violation
from llmsrv.params import SamplingParams

EOS = 256
VOCAB = 257


class ByteTokenizer:
    """Id = byte; EOS is special."""

    decodes_by_bytes = True
    strips_leading_space = False
    vocab_size = VOCAB
    sha256 = "0" * 64

    def encode(self, text, add_special_tokens=True):
        if "\ud800" in text:
            raise ValueError("text is not valid Unicode")
        return list(text.encode())

    def encode_with_offsets(self, text, add_special_tokens=True):
        ids = self.encode(text)
        return ids, [(i, i + 1) for i in range(len(ids))]

    def decode(self, ids, skip_special_tokens=True):
        return b"".join(self.token_bytes(i) for i in ids if i != EOS or not skip_special_tokens).decode(
            "utf-8", "replace"
        )

    def is_special(self, token_id):
        return token_id == EOS

    def token_bytes(self, token_id):
        return b"<eos>" if token_id == EOS else bytes([token_id])


class BracketTemplate:
    """Renders `[role]content` per message; refuses a conversation that mentions "forbidden"."""

    def render(self, messages, *, add_generation_prompt, continue_final_message, **kwargs):
        if any("forbidden" in message["content"] for message in messages):
            raise ValueError("the template refuses this")
        text = "".join(f"[{message['role']}]{message['content']}" for message in messages)
        return text + ("[assistant]" if add_generation_prompt else "") + "".join(map(str, kwargs.values()))


@dataclass
class FakeOutput:
    """The shape of _core.Output."""

    request: int
    index: int = 0
    token_ids: list = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    prompt_logprobs: list = field(default_factory=list)
    finish: object = None
    error: object = None
    final: bool = False
    usage: object = None
    timing: object = None


def core_error(code, message="refused"):
    """The shape of _core.StatusError."""
    return SimpleNamespace(code=int(code), message=message, violations=[], metadata={})


def finish(reason, stop_token=None, by_eos=False):
    return SimpleNamespace(reason=reason, stop_token=stop_token, stopped_by_eos=by_eos)


class FakeEngine:
    """Accepts requests and emits only what the test tells it to. Keeps the core's promise of one final output."""

    device = "fake"

    def __init__(self):
        self.condition = threading.Condition()
        self.outputs = []
        self.submitted = {}  # key -> built request
        self.live = {}  # key -> request id
        self.calls = []  # ("abort" | "stop", key)
        self.refusal = None
        self.failure = ""
        self.stopped = False
        self.stuck_s = 0.0
        self.queued = 0

    # what the service calls

    def build(self, request_id, prompt_ids, params, **fields):
        return SimpleNamespace(id=request_id, prompt=list(prompt_ids), params=params, **fields), []

    def validate(self, request):
        violations = []
        if not request.prompt:
            violations.append(Violation("input", "the prompt is empty"))
        violations += [
            Violation(f"input.token_ids[{i}]", "not in the vocabulary")
            for i, token in enumerate(request.prompt)
            if not 0 <= token < VOCAB
        ]
        if request.params.temperature < 0:
            violations.append(Violation("sampling.temperature", "must not be negative"))
        if len(request.tenant) > 1024:
            violations.append(Violation("tenant", "must have at most 1024 bytes"))
        return violations

    def submit(self, request, *, deadline_s=None):
        violations = self.validate(request)
        if violations:
            raise ServiceError.invalid(violations)
        if self.refusal is not None:
            raise ServiceError(self.refusal, "refused")
        with self.condition:
            if request.id in self.live.values():
                raise ServiceError(Code.ALREADY_EXISTS, "in flight")
            key = len(self.submitted) + 1
            request.deadline_s = deadline_s
            self.submitted[key] = request
            self.live[key] = request.id
            return key

    def abort(self, key):
        return self._end("abort", key)

    def stop(self, key):
        return self._end("stop", key)

    def abort_id(self, request_id):
        return any(self._end("abort", key) for key, each in list(self.live.items()) if each == request_id)

    def abort_all(self):
        ids = list(self.live.values())
        for key in list(self.live):
            self._end("abort", key)
        return ids

    def clear_prefix_cache(self):
        return 3

    def wait_outputs(self, timeout_ms):
        with self.condition:
            self.condition.wait_for(lambda: self.outputs or self.stopped, timeout_ms / 1000)
            taken, self.outputs = self.outputs, []
            return taken

    def stats(self):
        return SimpleNamespace(
            healthy=not self.failure,
            failure=self.failure,
            running=len(self.live),
            waiting=0,
            kv_blocks_total=64,
            kv_blocks_held=len(self.live),
            kv_blocks_cached=3,
            kv_blocks_free=61 - len(self.live),
            swap_blocks_total=32,
            swap_blocks_held=4,
            utilization=0.75,
            oldest_wait_s=1.5,
            states={"swapped": SimpleNamespace(current=1, entered=5, seconds=0.5)},
            prefix_queries=20,
            prefix_hits=10,
            copied_prefix_tokens=2,
            steps=0,
            prompt_tokens=0,
            generation_tokens=0,
            recomputed_tokens=6,
            preemptions=11,
            swap_outs=5,
            swap_ins=4,
            swapped_out_blocks=15,
            swapped_in_blocks=12,
            swap_bytes_per_second=2.5e9,
            step_seconds_per_token=0.002,
            deadline_drops=7,
            seconds_since_progress=self.stuck_s,
            requests={},
        )

    def shutdown(self):
        self.abort_all()
        with self.condition:
            self.stopped = True
            self.condition.notify_all()

    # what the test calls

    def emit(self, key, text=b"", *, index=0, ids=None, final=False, **fields):
        """Outputs as one step would give them: one token each."""
        token_ids = list(text) if ids is None else list(ids)
        self._push([FakeOutput(key, index, [each]) for each in token_ids])
        if fields or final:
            with self.condition:
                last = self.outputs[-1] if token_ids and self.outputs else None
                if last is None or last.request != key or last.index != index:
                    last = FakeOutput(key, index)
                    self.outputs.append(last)
                for name, value in fields.items():
                    setattr(last, name, value)
                if final:
                    self._seal(last)
                self.condition.notify_all()

    def push(self, outputs):
        """Several outputs that the pump takes together."""
        for output in outputs:
            if output.final:
                self._seal(output)
        self._push(outputs)

    def fail_all(self, message):
        """The engine dies: every live request gets its error."""
        self.failure = message
        error = core_error(Code.INTERNAL, message)
        self.push([FakeOutput(key, error=error, final=True) for key in list(self.live)])

    def _push(self, outputs):
        with self.condition:
            self.outputs += outputs
            self.condition.notify_all()

    def _seal(self, output):
        output.final = True
        output.usage = SimpleNamespace(
            prompt_tokens=len(self.submitted[output.request].prompt), completion_tokens=-1, cached_prompt_tokens=0
        )
        output.timing = SimpleNamespace(queue_s=0.25, prefill_s=0.5, decode_s=1.0, preemptions=0)
        self.live.pop(output.request, None)

    def _end(self, call, key):
        self.calls.append((call, key))
        if key not in self.live:
            return False
        reason = "stop" if call == "stop" else "aborted"
        output = FakeOutput(key, finish=finish(reason))
        self._seal(output)
        self._push([output])
        return True


def fake_model(engine, **overrides):
    config = ServeConfig(model="fake", port=0, max_model_len=4096, kv_cache_memory=1 << 20, drain_timeout=1.0)
    fields = {
        "name": "fake",
        "architecture": "FakeForCausalLM",
        "quantization": "",
        "engine": engine,
        "tokenizer": ByteTokenizer(),
        "chat_template": BracketTemplate(),
        "defaults": SamplingParams(top_k=7),
        "eos_token_ids": (EOS,),
        "vocab_size": VOCAB,
        "max_model_len": 4096,
        "max_position": 4096,
        "config": config,
        "plan": SimpleNamespace(
            kv_blocks=64, weight_formats={"embed": "q8_0", "layers.0.o": "bf16", "layers.0.q": "bf16"}
        ),
    }
    return LoadedModel(**{**fields, **overrides})
