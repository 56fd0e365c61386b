"""Writes perplexities.json: what transformers says of alice.txt, in float32, with the values of the same weights.

Run it where torch and transformers are, when the text, a model or a tokenizer changes:
  python tests/reference/store_perplexities.py
"""

import hashlib
import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parent))

from test_accuracy import BOUNDS, checkpoint, ids_of
from test_gemma3 import reference_model

from llmsrv.weights.fetch import fetch_demo_model
from llmsrv.weights.load import inspect_model

ROWS = 128


def perplexity(model, ids):
    """The head is applied to some rows at a time: logits of a large vocabulary fill the memory."""
    total = 0.0
    with torch.no_grad():
        states = model.model(torch.tensor([ids])).last_hidden_state[0]
        for first in range(0, len(ids) - 1, ROWS):
            following = torch.tensor(ids[first + 1 : first + 1 + ROWS])
            logits = model.lm_head(states[first : first + len(following)]).double()
            total += torch.nn.functional.cross_entropy(logits, following, reduction="sum").item()
    return float(np.exp(total / (len(ids) - 1)))


PARTS = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def smollm2_model(path):
    return transformers.AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        quantization_config=transformers.GgufConfig(dequantize=True),
        dtype=torch.float32,
    ).eval()


def fill(model, files, format_name):
    """Gives the model's matrices the values that they have in one format."""
    parameters = dict(model.named_parameters())
    for name, (kind, shape, data) in checkpoint(files, format_name).items():
        if len(shape) == 1:
            continue
        _, _, part = name.rpartition(".")
        layer = name.split(".")[1] if "." in name else ""
        target = "model.embed_tokens.weight" if name == "embed" else f"model.layers.{layer}.{PARTS[part]}.weight"
        rows = np.frombuffer(data, np.uint8).reshape(shape[0], -1)
        values = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[kind.upper()])
        parameters[target].data = torch.from_numpy(np.array(values, np.float32))


def main():
    found = {}

    def store(name, model, ids):
        ids_hash = hashlib.sha256(np.array(ids, np.int32).tobytes()).hexdigest()
        found[name] = {"positions": len(ids), "perplexity": perplexity(model, ids), "ids": ids_hash}
        print(name, found[name]["perplexity"])

    path = fetch_demo_model("smollm2-135m")
    files = inspect_model(path)
    model = smollm2_model(path)
    for format_name in BOUNDS:
        if format_name != files.quantization.lower():
            fill(model, files, format_name)
        store(f"smollm2-135m {format_name}", model, ids_of(files))
    path = fetch_demo_model("gemma3-270m")
    store("gemma3-270m", reference_model(path), ids_of(inspect_model(path)))
    made_by = {"torch": torch.__version__, "transformers": transformers.__version__}
    content = {"made by": made_by} | found
    Path(__file__).with_name("perplexities.json").write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
