"""python unpack_gguf.py FILE FOLDER: a GGUF file as a bfloat16 folder in Hugging Face's form, its values unpacked."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    file, folder = Path(sys.argv[1]).resolve(), sys.argv[2]
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


if __name__ == "__main__":
    main()
