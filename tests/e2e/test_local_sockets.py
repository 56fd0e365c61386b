"""A strict daemon on Unix sockets for HTTP and for administrators, beside its public port, as curl and gRPC see it."""

import json
import shutil
import socket
import stat
import subprocess

import grpc
import pytest
from daemons import Daemon, request
from http_client import events_of

from llmsrv.commit import built_commit
from llmsrv.v1 import admin_pb2, admin_pb2_grpc

CHAT = {"messages": [{"role": "user", "content": "What is the capital of Japan?"}], "temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sockets")


@pytest.fixture(scope="module")
def local_daemon(smollm2_path, folder):
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(folder / "http.sock"))
    left.close()  # as a daemon that was killed leaves it
    daemon = Daemon(
        *("--model", str(smollm2_path), "--max-model-len", "1024", "--kv-cache-memory", "64MiB"),
        *("--http-host", f"unix:{folder}/http.sock", "--admin-host", f"unix:{folder}/admin.sock"),
        *("--permission-mode", "strict"),
    )
    yield daemon.wait_until_serving()
    daemon.stop()


def curl(folder, path, body=None):
    program = shutil.which("curl")
    assert program, "curl is not installed"
    sent = () if body is None else ("--json", json.dumps(body))
    asked = [program, "-sS", "-N", "--unix-socket", folder / "http.sock", f"http://localhost{path}", *sent]
    return subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout


def test_curl_over_a_unix_socket(local_daemon, folder):
    local_daemon.wait_for(rf"^listening for HTTP on unix:{folder}/http\.sock$")
    assert json.loads(curl(folder, "/v1/models"))["data"][0]["max_model_len"] == 1024
    answer = json.loads(curl(folder, "/v1/chat/completions", CHAT))
    assert "Tokyo" in answer["choices"][0]["message"]["content"]
    *chunks, done = events_of(curl(folder, "/v1/chat/completions", {**CHAT, "stream": True}).encode())
    assert done == "[DONE]"
    said = "".join(each["choices"][0]["delta"].get("content", "") for each in chunks)
    assert said == answer["choices"][0]["message"]["content"]
    assert json.loads(curl(folder, "/version"))["commit"] == built_commit()


def test_administrators_are_apart(local_daemon, folder):
    local_daemon.wait_for(rf"^listening for administrators on unix:{folder}/admin\.sock$")
    asked = admin_pb2.GetServerInfoRequest()
    with pytest.raises(grpc.RpcError) as caught:
        local_daemon.admin.GetServerInfo(asked)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with grpc.insecure_channel(f"unix:{folder}/admin.sock") as channel:
        info = admin_pb2_grpc.AdminServiceStub(channel).GetServerInfo(asked)
    assert (info.state, info.commit) == (admin_pb2.SERVER_STATE_SERVING, built_commit())
    assert local_daemon.inference.Generate(request()).usage.completion_tokens == 8


def test_the_sockets_are_the_daemons_own_and_go_with_it(local_daemon, folder):
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) & 0o077 for path in folder.iterdir()}
    assert modes == {"http.sock": 0, "admin.sock": 0}
    local_daemon.signal()
    assert local_daemon.wait() == 0
    assert list(folder.iterdir()) == []
