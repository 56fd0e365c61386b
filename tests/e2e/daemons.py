"""Starts real daemons and talks to them: what the end-to-end tests share."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time

import grpc
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from llmsrv.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2_grpc,
    types_pb2,
)

START_S = 60.0  # a machine that is shared may be slow; the start-up time itself is looked at by bench/


class Daemon:
    """A daemon in a process of its own."""

    def __init__(self, *flags):
        command = [sys.executable, "-m", "llmsrv.serve.daemon", "--port", "0", "--exit-with-parent", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines = []
        self._news = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        listening = self.wait_for(r"listening on (unix:\S+|\S+:(\d+))")
        self.address = listening[1]
        self.port = int(listening[2] or 0)
        if "--http-port" in flags:
            self.http_port = int(self.wait_for(r"listening on https?://\S+:(\d+)")[1])
        self.channel = grpc.insecure_channel(self.address)
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.models = model_pb2_grpc.ModelServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    def _read(self):
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line.rstrip())
                self._news.notify_all()
        with self._news:
            self.lines.append("<end>")
            self._news.notify_all()

    def wait_for(self, pattern, timeout_s=START_S):
        """The first line that matches; the log so far is searched too."""

        def search():
            return next((found for line in self.lines if (found := re.search(pattern, line))), None)

        with self._news:
            self._news.wait_for(lambda: search() or "<end>" in self.lines, timeout_s)
            found = search()
        assert found, f"no line matches {pattern!r} in:\n" + "\n".join(self.lines)
        return found

    def wait_until_serving(self):
        self.wait_for(r"^serving ")
        return self

    def stats(self):
        return self.admin.GetStats(admin_pb2.GetStatsRequest()).stats

    def health_of(self, service=""):
        return self.health.Check(health_pb2.HealthCheckRequest(service=service)).status

    def wait_until_idle(self, timeout_s=10.0):
        """Within this time nothing runs, nothing waits and no KV block is held."""
        end = time.monotonic() + timeout_s
        while True:
            stats = self.stats()
            if stats.running == stats.waiting == stats.kv_blocks_used == 0:
                return
            assert time.monotonic() < end, f"still held:\n{stats}"
            time.sleep(0.02)

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, timeout_s=30):
        return self.process.wait(timeout_s)

    def stop(self):
        self.channel.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()


def request(text="Once upon a time", *, max_tokens=8, greedy=True, **fields):
    """A small generation; `sampling`, `stopping` and `output` are given as dicts."""
    sampling = {"temperature": 0.0} if greedy else {}
    sampling.update(fields.pop("sampling", {}))
    stopping = {"max_tokens": max_tokens, "ignore_eos": True, **fields.pop("stopping", {})}
    if text is not None:
        fields["text"] = text
    return inference_pb2.GenerateRequest(
        sampling=types_pb2.SamplingParams(**sampling),
        stopping=types_pb2.StoppingParams(**stopping),
        output=types_pb2.OutputOptions(**fields.pop("output", {})),
        **fields,
    )


def stream(daemon, message, **call):
    return daemon.inference.GenerateStream(inference_pb2.GenerateStreamRequest(request=message), **call)


def merged(messages):
    """A stream's messages as the unary answer, after checking what holds for every stream."""
    messages = list(messages)
    assert [m.HasField("start") for m in messages] == [True] + [False] * (len(messages) - 1)
    assert [m.HasField("end") for m in messages] == [False] * (len(messages) - 1) + [True]
    completions = {}
    counted = 0
    for delta in (delta for message in messages for delta in message.deltas):
        completion = completions.setdefault(delta.index, inference_pb2.Completion(index=delta.index))
        assert not completion.HasField("finish"), "a delta after the last one"
        completion.text += delta.text
        completion.token_ids.extend(delta.token_ids)
        completion.logprobs.extend(delta.logprobs)
        counted += delta.token_count
        if delta.HasField("finish"):
            completion.finish.CopyFrom(delta.finish)
    assert all(each.HasField("finish") for each in completions.values())
    start, end = messages[0].start, messages[-1].end
    assert counted == end.usage.completion_tokens
    return inference_pb2.GenerateResponse(
        request_id=start.request_id,
        model=start.model,
        prompt=start.prompt,
        completions=[completions[i] for i in sorted(completions)],
        usage=end.usage,
        timing=end.timing,
    )


def without_what_differs(response):
    """Two runs of one request differ in their id, in times, and in what the second found in the prefix cache."""
    same = inference_pb2.GenerateResponse()
    same.CopyFrom(response)
    same.ClearField("request_id")
    same.ClearField("timing")
    same.usage.ClearField("cached_prompt_tokens")
    same.prompt.ClearField("cached_token_count")
    return same


def details(error):
    """google.rpc details of a failed call, by name."""
    unpacked = {}
    for packed in rpc_status.from_call(error).details:
        message = getattr(error_details_pb2, packed.TypeName().rsplit(".", 1)[1])()
        packed.Unpack(message)
        unpacked[type(message).__name__] = message
    return unpacked


def violated_fields(error):
    return [each.field for each in details(error)["BadRequest"].field_violations]
