#!/usr/bin/env python3
"""Writes crates/convert/tests/data/gguf_dequant.json: blocks of every GGUF tensor type that the
importer reads, with the values that the PyPI package `gguf` gives for them.

    pip install gguf numpy
    python3 tools/gguf_vectors.py crates/convert/tests/data/gguf_dequant.json

Per type: `blocks` (hex of a few random blocks) and `values` (hex of the f32 results,
little-endian). Random bytes are drawn for everything except floating-point scales, which are
random finite values. The package has no dequantiser for Q8_K and Q1_0; for these two the values
come from the formula of their documented layout, below, and `source` says so.
"""

import json
import sys

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T

BLOCKS = 3
# Byte offsets of the binary16 fields of each type.
HALF_FIELDS = {
    T.F16: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
    T.IQ4_NL: [0], T.IQ4_XS: [0], T.TQ1_0: [52], T.TQ2_0: [64], T.Q1_0: [0],
}
TYPES = [
    T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K,
    T.Q6_K, T.Q8_K, T.IQ4_NL, T.IQ4_XS, T.TQ1_0, T.TQ2_0, T.MXFP4, T.Q1_0,
]


def q8_k(block):
    """f32 d, 256 signed bytes, 16 sums of int16 that do not matter here: d * q."""
    d = block[:4].view("<f4")[0]
    return d * block[4:260].view(np.int8).astype(np.float32)


def q1_0(block):
    """binary16 d, 128 bits, least significant first: +d for a set bit, -d for a clear one."""
    d = block[:2].view("<f2").astype(np.float32)[0]
    bits = np.unpackbits(block[2:], bitorder="little").astype(np.float32)
    return d * (2 * bits - 1)


def random_blocks(rng, kind, count, size):
    data = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for at in HALF_FIELDS.get(kind, []):
        halves = (rng.standard_normal((count, 1)) * 0.1).astype("<f2")
        data[:, at:at + 2] = halves.view(np.uint8)
    if kind == T.F32:
        data = rng.standard_normal((count, 1)).astype("<f4").view(np.uint8)
    elif kind == T.BF16:
        data = rng.standard_normal((count, 1)).astype("<f4").view(np.uint8)[:, 2:]
    elif kind == T.Q8_K:
        data[:, :4] = rng.standard_normal((count, 1)).astype("<f4").view(np.uint8)
    elif kind == T.MXFP4:
        data[:, 0] = [0, 1] + [int(e) for e in rng.integers(100, 150, count - 2)]
    return np.ascontiguousarray(data)


def main(path):
    rng = np.random.default_rng(20240611)
    out = {}
    for kind in TYPES:
        length, size = GGML_QUANT_SIZES[kind]
        data = random_blocks(rng, kind, BLOCKS if length > 1 else 16, size)
        own = {T.Q8_K: q8_k, T.Q1_0: q1_0}.get(kind)
        if own:
            values = np.stack([own(block) for block in data])
        else:
            values = gguf.dequantize(data, kind)
        values = values.astype("<f4").reshape(-1)
        assert values.size == len(data) * length and np.isfinite(values).all(), kind
        out[kind.name] = {
            "id": int(kind),
            "source": "formula" if own else "gguf",
            "blocks": data.tobytes().hex(),
            "values": values.tobytes().hex(),
        }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(out, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
