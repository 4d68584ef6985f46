#!/usr/bin/env python3
"""Writes crates/convert/tests/data/gguf_names.json: the names that GGUF converters give the tensors of each
architecture, as the tables of the PyPI package `gguf` have them.

    pip install gguf
    python3 tools/gguf_names.py crates/convert/tests/data/gguf_names.json

Per architecture: stem of the Hugging Face name -> stem of the GGUF name, `{bid}` standing for the number of the layer.
Where converters first change a tensor (experts are stacked, projections cut), the stem is that of the result.
"""

import json
import sys

import gguf
from gguf.constants import MODEL_ARCH, MODEL_TENSOR, TENSOR_NAMES

TOP = ["model.embed_tokens", "model.norm", "lm_head"]
ATTENTION = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
QK_NORM = ["self_attn.q_norm", "self_attn.k_norm"]
FFN = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
PRE = ["input_layernorm", "post_attention_layernorm"]
SANDWICH = [*PRE, "pre_feedforward_layernorm", "post_feedforward_layernorm"]
EXPERTS = ["mlp.gate", "mlp.experts.gate_proj", "mlp.experts.up_proj", "mlp.experts.down_proj"]
SHARED = ["mlp.shared_expert_gate", "mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj",
          "mlp.shared_expert.down_proj"]
DELTA = [f"linear_attn.{s}" for s in ["A_log", "conv1d", "dt_proj", "norm", "out_proj"]]
DELTA35 = [f"linear_attn.{s}" for s in ["in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b"]]
CONV = ["conv.conv", "conv.in_proj", "conv.out_proj"]
LFM = ["operator_norm", "ffn_norm", *ATTENTION[:3], "self_attn.out_proj", "self_attn.q_layernorm",
       "self_attn.k_layernorm", *CONV, "feed_forward.w1", "feed_forward.w2", "feed_forward.w3"]
NEXTN = ["eh_proj", "enorm", "hnorm", "shared_head.norm"]

# Architecture -> (top level, inside a layer, names under `layers.{bid}.`).
TABLE = {
    "llama": (TOP, [*PRE, *ATTENTION, *FFN, "block_sparse_moe.gate"],
              ["feed_forward.experts.w1", "feed_forward.experts.w2", "feed_forward.experts.w3"]),
    "qwen2moe": (TOP, [*PRE, *ATTENTION, *EXPERTS, *SHARED], []),
    "qwen3moe": (TOP, [*PRE, *ATTENTION, *QK_NORM, *EXPERTS], []),
    "qwen3next": (TOP, [*PRE, *ATTENTION, *QK_NORM, *EXPERTS, *SHARED, *DELTA, "linear_attn.in_proj_ba",
                        "linear_attn.in_proj_qkvz"], []),
    "qwen35": (TOP, [*PRE, *ATTENTION, *QK_NORM, *FFN, *DELTA, *DELTA35], []),
    "qwen35moe": (TOP, [*PRE, *ATTENTION, *QK_NORM, *EXPERTS, *SHARED, *DELTA, *DELTA35], []),
    "gemma": (TOP[:2], [*PRE, *ATTENTION, *FFN], []),
    "gemma2": (TOP[:2], [*SANDWICH, *ATTENTION, *FFN], []),
    "gemma3": (TOP[:2], [*SANDWICH, *ATTENTION, *QK_NORM, *FFN], []),
    "phi3": (TOP, [*PRE, "self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"], []),
    "olmo2": (TOP, [*PRE[1:], "post_feedforward_layernorm", *ATTENTION, *QK_NORM, *FFN], []),
    "smollm3": (TOP, [*PRE, *ATTENTION, *FFN], []),
    "deepseek2": (TOP, [*PRE, "self_attn.q_proj", "self_attn.q_a_proj", "self_attn.q_a_layernorm",
                        "self_attn.q_b_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.kv_a_layernorm",
                        "self_attn.kv_b_proj", "self_attn.k_b_proj", "self_attn.v_b_proj", "self_attn.o_proj", *FFN,
                        *EXPERTS, "mlp.gate.e_score_correction", "mlp.shared_experts.gate_proj",
                        "mlp.shared_experts.up_proj", "mlp.shared_experts.down_proj"], []),
    "lfm2": (["model.embed_tokens", "model.embedding_norm"], LFM, []),
    "lfm2moe": (["model.embed_tokens", "model.embedding_norm"], [*LFM, "feed_forward.gate",
                "feed_forward.expert_bias"],
                ["feed_forward.experts.w1", "feed_forward.experts.w2", "feed_forward.experts.w3"]),
}
# Names that converters format themselves.
EXTRA = {
    "qwen3next": {"qkv": MODEL_TENSOR.ATTN_QKV, "gate": MODEL_TENSOR.ATTN_GATE},
    "phi3": {"long": MODEL_TENSOR.ROPE_FACTORS_LONG, "short": MODEL_TENSOR.ROPE_FACTORS_SHORT},
}
# The tables list these for other architectures of the package's release; converters use them here as well.
NEXTN_TENSORS = {
    "eh_proj": MODEL_TENSOR.NEXTN_EH_PROJ, "enorm": MODEL_TENSOR.NEXTN_ENORM, "hnorm": MODEL_TENSOR.NEXTN_HNORM,
    "shared_head.norm": MODEL_TENSOR.NEXTN_SHARED_HEAD_NORM,
}


def names(arch):
    top, layer, bare = TABLE[arch]
    kind = next(a for a in MODEL_ARCH if gguf.MODEL_ARCH_NAMES[a] == arch)
    mapping = gguf.get_tensor_name_map(kind, 1)
    out = {}
    for stem in [*top, *(f"model.layers.0.{s}" for s in layer), *(f"layers.0.{s}" for s in bare)]:
        found = mapping.get_name(stem)
        if found is None:
            raise SystemExit(f"{arch}: no name for {stem}")
        out[stem.replace("layers.0.", "layers.{bid}.")] = found.replace("blk.0.", "blk.{bid}.")
    out.update({name: TENSOR_NAMES[tensor] for name, tensor in EXTRA.get(arch, {}).items()})
    if arch in ("qwen3next", "qwen35", "qwen35moe"):
        out.update({f"model.layers.{{bid}}.{s}": TENSOR_NAMES[t] for s, t in NEXTN_TENSORS.items()})
    return out


with open(sys.argv[1], "w", encoding="utf-8") as file:
    json.dump({arch: names(arch) for arch in TABLE}, file, indent=1)
    file.write("\n")
