"""What a request leaves open comes from the model's generation_config.json, over both protocols, unless it must not.

The folder is a tiny random model of ours: 256 bytes as tokens and one that ends.
"""

import sys
from pathlib import Path

import pytest
from daemons import Daemon, request
from http_client import post
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from llmsrv.v1 import model_pb2
from llmsrv.weights.model_files import GenerationDefaults, inspect_model

sys.path.append(str(Path(__file__).parents[1] / "unit"))
from checkpoints import TINY, tiny_tensors, write_folder

RECOMMENDED = {"temperature": 1.5, "top_p": 0.9, "top_k": 1, "repetition_penalty": 1.25, "max_new_tokens": 7}


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate([*alphabet, "</s>"])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    config = TINY | {"vocab_size": 257, "eos_token_id": 256}
    path = write_folder(
        tmp_path_factory.mktemp("models") / "tiny", tiny_tensors(config), config, generation_config=RECOMMENDED
    )
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def started(folder, *flags):
    return Daemon("--model", str(folder), "--kv-cache-memory", "8MiB", "--http-port", "0", *flags).wait_until_serving()


def answers(daemon, seed, **sampling):
    """The same request over both protocols."""
    asked = request("abc", greedy=False, max_tokens=20, sampling={"seed": seed, **sampling}, output={"token_ids": True})
    over_grpc = list(daemon.inference.Generate(asked).completions[0].token_ids)
    body = {"prompt": "abc", "max_tokens": 20, "ignore_eos": True, "seed": seed, "return_token_ids": True, **sampling}
    over_http = post(daemon.http_port, "/v1/completions", body).json["choices"][0]["token_ids"]
    assert over_http == over_grpc
    return over_grpc


def test_requests_get_what_the_model_recommends(folder):
    daemon = started(folder)
    try:
        (model,) = daemon.models.ListModels(model_pb2.ListModelsRequest()).models
        told = daemon.models.GetModel(model_pb2.GetModelRequest()).model.default_sampling
        assert model.default_sampling == told
        assert (told.temperature, told.top_k, told.repetition_penalty) == (1.5, 1, 1.25)
        assert told.top_p == pytest.approx(0.9)
        assert (told.min_p, told.frequency_penalty, told.presence_penalty) == (0.0, 0.0, 0.0)
        daemon.wait_for("generation_config: max_new_tokens = 7 is not applied")
        assert len({tuple(answers(daemon, seed)) for seed in range(4)}) == 1  # of one token each draw is the same
        explicit = {"temperature": 1.5, "top_p": 0.9, "top_k": 1, "repetition_penalty": 1.25}
        assert answers(daemon, 0, **explicit) == answers(daemon, 0)
        assert len({tuple(answers(daemon, seed, top_k=0)) for seed in range(4)}) > 1  # what is set wins, zero included
    finally:
        daemon.stop()


def test_none_takes_nothing_from_the_model(folder):
    daemon = started(folder, "--generation-config", "none")
    try:
        told = daemon.models.GetModel(model_pb2.GetModelRequest()).model.default_sampling
        assert (told.temperature, told.top_p, told.top_k, told.repetition_penalty) == (1.0, 1.0, 0, 1.0)
        assert len({tuple(answers(daemon, seed)) for seed in range(4)}) > 1
        neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}
        assert answers(daemon, 3, **neutral) == answers(daemon, 3)
    finally:
        daemon.stop()


def test_the_demo_models_recommend_nothing(smollm2_path, gemma3_path):
    for path in (smollm2_path, gemma3_path):
        assert inspect_model(path).generation == GenerationDefaults()
