"""A request has one id, which its client may choose, over both protocols; while it is in flight nobody else has it."""

import threading

import grpc
import pytest
from daemons import details, request, stream
from http_client import JSON, call, events_of

from llmsrv.v1 import admin_pb2

LONG = {"prompt": "Once upon a time", "max_tokens": 900, "temperature": 0, "ignore_eos": True}
SHORT = {**LONG, "max_tokens": 2}


def complete(daemon, body, request_id, path="/v1/completions"):
    return call(daemon.http_port, "POST", path, body, {**JSON, "x-request-id": request_id})


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_the_clients_own_id_comes_back(daemon, path):
    body = SHORT if path == "/v1/completions" else {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    answer = complete(daemon, body, "mine/7", path)
    assert (answer.status, answer.headers["x-request-id"], answer.json["id"]) == (200, "mine/7", "mine/7")
    streamed = complete(daemon, {**body, "stream": True}, "mine/7", path)
    assert streamed.headers["x-request-id"] == "mine/7"
    assert {each["id"] for each in events_of(streamed.body)[:-1]} == {"mine/7"}


def test_an_id_in_flight_is_taken_for_both_protocols(daemon):
    running = stream(daemon, request(request_id="taken", max_tokens=900))
    assert next(running).start.request_id == "taken"
    refused = complete(daemon, SHORT, "taken")
    assert (refused.status, refused.error["code"]) == (409, "request_id_in_use")
    with pytest.raises(grpc.RpcError) as caught:
        daemon.inference.Generate(request(request_id="taken"))
    assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
    assert details(caught.value)["ErrorInfo"].reason == "REQUEST_ID_IN_USE"
    running.cancel()
    daemon.wait_until_idle()
    assert complete(daemon, SHORT, "taken").status == 200


def test_an_http_request_is_aborted_by_its_id(daemon):
    body = {**LONG, "prompt": ["Once", "Twice"]}
    aborted = set()  # one may be named twice: it is in flight until its last message was made

    def abort():
        ids = admin_pb2.AbortRequest.Ids(request_ids=["twins-0", "twins-1"])
        while len(aborted) < 2:
            aborted.update(daemon.admin.Abort(admin_pb2.AbortRequest(ids=ids)).aborted_request_ids)

    thread = threading.Thread(target=abort)
    thread.start()
    answer = complete(daemon, body, "twins")
    thread.join()
    assert aborted == {"twins-0", "twins-1"}
    assert [each["finish_reason"] for each in answer.json["choices"]] == ["abort", "abort"]


@pytest.mark.parametrize("request_id", ["", "two words", "x" * 201])
def test_an_impossible_id(daemon, request_id):
    refused = complete(daemon, SHORT, request_id)
    assert refused.status == 400
    assert "x-request-id" in refused.error["message"]
