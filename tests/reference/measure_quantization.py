"""Prints what each kind of --quantization costs a model: the divergence from its floats on alice.txt.

python tests/reference/measure_quantization.py gemma3-270m [POSITIONS]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from divergence import divergences
from test_accuracy import ids_of, load_floats

from llmsrv.weights.fetch import fetch_demo_model
from llmsrv.weights.load import inspect_model

DTYPES = ("bfloat16", "int8", "int8-g64", "int8-g128", "int4", "int4-g64", "int4-g128")


def main():
    files = inspect_model(fetch_demo_model(sys.argv[1]))
    ids = ids_of(files)[: int(sys.argv[2]) if len(sys.argv) > 2 else None]
    exact, *found = load_floats(files, "float32", *DTYPES)
    results = divergences((exact, "float32"), [(weights, "bfloat16") for weights in found], ids)
    print(f"{sys.argv[1]}, {len(ids)} positions")
    for dtype, weights, result in zip(DTYPES, found, results, strict=True):
        print(f"{dtype:10} {weights.bytes / 1e6:7.1f} MB  {result}")


if __name__ == "__main__":
    main()
