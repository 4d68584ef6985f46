#!/usr/bin/env python3
"""Makes the fixtures of Gemma 1, Gemma 4, LFM2 and LFM2-MoE: scripts/make_family_fixtures.py [NAME...]

    pip install torch==2.15.0 transformers==5.24.0 tokenizers==0.23.3 safetensors==0.8.0 numpy==2.4.6

Writes fixtures/models/<name>/ in the form that fixtures/README.md describes: a checkpoint as `save_pretrained` of
transformers writes it, with random weights; its configuration as published checkpoints have it (config.v4.json); the
values that transformers computes from it on the CPU (golden.json). Nothing is fetched, and weights and prompts follow
from the seeds below, so that the same versions give the same files. The last digits of the computed values may differ
on another processor.
"""

import json
import os
import pathlib
import platform
import shutil
import sys
import tempfile
import zlib

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["TQDM_DISABLE"] = "1"

import numpy as np
import safetensors
import safetensors.torch
import tokenizers
import torch
import transformers
from transformers.models.gemma4.configuration_gemma4 import Gemma4Config, Gemma4TextConfig, Gemma4VisionConfig

MODELS = pathlib.Path(__file__).parent.parent / "fixtures/models"
LENGTHS = [1, 7, 64, 300]
NEW_TOKENS = 24
# A prompt is taken when no step of its continuation and no choice of experts is nearly a tie.
LEAST_MARGIN = 0.02
LEAST_ROUTER_MARGIN = 5e-4
# Random models like to repeat a token, which would show little.
LEAST_DISTINCT = 8

# Prompts of 7 and 300 tokens begin somewhere in this text.
TEXT = """The miller kept two ledgers. In the first he wrote what the farmers brought him, sack by sack, and in the
second what he gave back to them, and at the end of every week he read both aloud to the wheel, because nobody else
would listen. "Forty sacks of rye," he read, "and eleven of barley; minus the toll, which is 1/16 of everything that
passes the stone." The wheel turned and said nothing. One autumn the river fell so low that the wheel stood still for
nine days. On the tenth day a girl came down the path with an empty cart and asked for the second ledger. She sat on
the step, licked her pencil and added up every column again, from the bottom to the top and from the top to the bottom.
"You owe my mother three sacks," she said, "and the widow Brandt two and a half." The miller laughed, then he counted,
then he stopped laughing. He carried the sacks to the cart himself. When he came back for the last half the wheel had
begun to move, slowly, as if somebody had pushed it; it had rained in the hills. From that day on he read the ledgers
to whoever came by, and he was seldom wrong, and when he was wrong it was never for longer than a week."""


def gemma():
    config = transformers.GemmaConfig(
        vocab_size=1024, hidden_size=64, intermediate_size=160, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=1, head_dim=24, max_position_embeddings=1024,
    )

    def published(config):
        # The first checkpoints name the activation so and mean the tanh form.
        config["hidden_act"] = "gelu"
        move_rope(config)

    return {
        "about": "norms with 1 + w, GeGLU, embeddings times sqrt(hidden), one key/value head, head_dim != hidden/heads",
        "class": transformers.GemmaForCausalLM, "config": config, "published": published, "tokenizer": "gemma_spm",
    }


def gemma4_text(**changes):
    config = dict(
        vocab_size=1024, hidden_size=64, intermediate_size=160, num_attention_heads=4, num_key_value_heads=2,
        hidden_size_per_layer_input=0, max_position_embeddings=1024,
    )
    return Gemma4TextConfig(**{**config, **changes})


def gemma4():
    slide, full = "sliding_attention", "full_attention"
    config = gemma4_text(
        num_hidden_layers=5, layer_types=[slide, full, slide, slide, full], sliding_window=24, head_dim=16,
        global_head_dim=32, attention_k_eq_v=False, final_logit_softcapping=6.0,
    )
    return {
        "about": "two geometries of attention, values of their own in both, value norm, layer scalars, soft cap, "
                 "an irregular order of layers",
        "class": transformers.Gemma4ForCausalLM, "config": config,
        "published": lambda config: publish_gemma4(config, 32, None), "tokenizer": "gemma_spm",
    }


def gemma4_vl_layout():
    text = gemma4_text(
        num_hidden_layers=6, sliding_window=32, head_dim=24, global_head_dim=40, num_global_key_value_heads=1,
        attention_k_eq_v=True, final_logit_softcapping=10.0, use_bidirectional_attention="vision",
    )
    vision = Gemma4VisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        head_dim=16, patch_size=4, pooling_kernel_size=2, position_embedding_size=16,
    )
    names = ["boi", "eoi", "image", "video", "boa", "audio"]
    ids = {f"{name}_token_id": 1010 + i for i, name in enumerate(names)}
    config = Gemma4Config(text_config=text, vision_config=vision, audio_config=None, eoa_token_index=1016, **ids)
    return {
        "about": "published multimodal layout; five sliding layers to one full layer, whose keys are its values, "
                 "with key/value heads of their own number",
        "class": transformers.Gemma4ForConditionalGeneration, "config": config,
        "published": lambda config: publish_gemma4(config["text_config"], 40, 1), "tokenizer": "gemma_spm",
    }


def publish_gemma4(config, global_head_dim, global_kv_heads):
    """Transformers 5.24 lists what differs layer by layer; earlier versions, and the published files, by two keys."""
    del config["per_layer_config"]
    config["global_head_dim"] = global_head_dim
    config["num_global_key_value_heads"] = global_kv_heads


def lfm2():
    attention = [2, 4]
    config = transformers.Lfm2Config(
        vocab_size=768, hidden_size=64, intermediate_size=200, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, full_attn_idxs=attention, block_multiple_of=32,
        block_ffn_dim_multiplier=1.2, bos_token_id=724, eos_token_id=728, pad_token_id=725,
    )

    def published(config):
        del config["layer_types"], config["tie_word_embeddings"]
        config["block_ff_dim"] = config.pop("intermediate_size")
        for key in ["block_dim", "conv_dim", "conv_dim_out"]:
            config[key] = config["hidden_size"]
        config["num_heads"] = config["num_attention_heads"]
        config["block_norm_eps"] = config["norm_eps"]
        move_rope(config)
        config["theta"] = config["rope_theta"]

    return {
        "about": "gated short convolutions, attention with q/k norm in two of six layers, adjusted FFN width",
        "class": transformers.Lfm2ForCausalLM, "config": config, "published": published, "tokenizer": "llama3_bpe",
    }


def lfm2_moe():
    layer_types = ["conv", "conv", "full_attention", "conv", "full_attention"]
    config = transformers.Lfm2MoeConfig(
        vocab_size=768, hidden_size=64, intermediate_size=160, moe_intermediate_size=32, num_hidden_layers=5,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024, layer_types=layer_types,
        num_dense_layers=2, num_experts=8, num_experts_per_tok=3, routed_scaling_factor=1.5,
        bos_token_id=724, eos_token_id=728, pad_token_id=725,
    )

    def published(config):
        config["tie_embedding"] = config.pop("tie_word_embeddings")
        move_rope(config)

    return {
        "about": "experts chosen by biased sigmoid scores, top-k normalised and scaled, two dense layers first",
        "class": transformers.Lfm2MoeForCausalLM, "config": config, "published": published, "tokenizer": "llama3_bpe",
    }


SPECS = [gemma, gemma4, gemma4_vl_layout, lfm2, lfm2_moe]


def move_rope(config):
    """From `rope_parameters` to what transformers 4 wrote."""
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["rope_scaling"] = None


def random_weights(model, seed):
    """Fills all parameters, in the dtype in which they are stored."""
    model_type = model.config.get_text_config().model_type
    kept = {name: buffer for name, buffer in model.named_buffers() if name.endswith(("layer_scalar", "expert_bias"))}
    for name, tensor in [*model.named_parameters(), *kept.items()]:
        generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
        values = distribution(name, model_type, tuple(tensor.shape), generator)
        values = torch.from_numpy(values.astype(np.float32))
        # The published routers' biases are float32.
        dtype = torch.float32 if name.endswith("expert_bias") else torch.bfloat16
        tensor.data = values.to(dtype)


def distribution(name, model_type, shape, generator):
    """Of a size that keeps every block active: unit residual branches, logits with a deviation of about 2."""
    normal = generator.standard_normal(shape)
    # Embedded tokens as large as the branches would let the head, which is tied to them, repeat its input for ever.
    is_gemma = model_type.startswith("gemma")
    embedding, final_norm = (0.04, 6.0) if is_gemma else (0.25, 1.0)
    if name.endswith("layer_scalar"):
        return generator.uniform(0.7, 1.1, shape)
    if name.endswith("expert_bias"):
        return 0.15 * normal
    if name.endswith("embed_tokens.weight"):
        return embedding * normal
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        # These scores are not divided by sqrt(head_dim).
        return 0.6 + 0.15 * normal
    if "norm" in name:
        is_final = name.endswith(("model.norm.weight", "language_model.norm.weight"))
        weight = (final_norm if is_final else 1.0) + 0.2 * normal
        return weight - 1.0 if model_type == "gemma" else weight
    if name.endswith("conv.conv.weight"):
        return 0.6 * normal
    gain = 1.4 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1.0
    return gain / np.sqrt(shape[-1]) * normal


def floats(values):
    """The shortest decimals that give the same float32 again."""
    if isinstance(values, torch.Tensor):
        values = values.detach().to(torch.float32).numpy()
    values = np.asarray(values, dtype=np.float32)
    if values.ndim == 0:
        return float(str(values))
    return [floats(row) for row in values] if values.ndim > 1 else [float(str(x)) for x in values]


def load(model_class, folder):
    model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    if model.config.model_type == "lfm2_moe":
        model.set_experts_implementation("eager")
    return model.eval()


def forward(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def text_model(model):
    inner = model.model
    return getattr(inner, "language_model", inner)


class Recorder:
    """Outputs of the parts of a model, recorded by hooks."""

    def __init__(self, model):
        inner = text_model(model)
        self.values, self.router_margins, self.handles = {}, [], []
        self.count = len(inner.layers)
        self.watch("embed", inner.embed_tokens)
        self.watch("final_norm", getattr(inner, "embedding_norm", None) or inner.norm)
        self.kinds = []
        for i, layer in enumerate(inner.layers):
            attention = getattr(layer, "self_attn", None)
            mlp = getattr(layer, "feed_forward", None) or layer.mlp
            self.kinds.append(("attention" if attention else "short_conv", hasattr(mlp, "experts")))
            self.watch((i, "mixer_out"), attention or layer.conv)
            self.watch((i, "mlp_out"), mlp)
            self.watch((i, "out"), layer)
            if hasattr(mlp, "experts"):
                hook = lambda _, __, output, bias=mlp.expert_bias, k=mlp.gate.top_k: self.margin(output[0], bias, k)
                self.handles.append(mlp.gate.register_forward_hook(hook))

    def watch(self, key, module):
        def hook(_module, _inputs, output):
            self.values[key] = (output[0] if isinstance(output, tuple) else output).detach().clone()[0]

        self.handles.append(module.register_forward_hook(hook))

    def margin(self, logits, bias, k):
        """Biased scores: the last expert taken minus the first one that is not."""
        scores = (logits.sigmoid() + bias).sort(dim=-1, descending=True).values
        self.router_margins.append(float((scores[:, k - 1] - scores[:, k]).min()))

    def router_min_margin(self):
        return min(self.router_margins) if self.router_margins else None

    def trace(self):
        norm = lambda key: floats(self.values[key].double().norm(dim=-1))
        last = lambda key: floats(self.values[key][-1])
        layers = [
            {
                "mixer": self.kinds[i][0], "moe": self.kinds[i][1], "mixer_out_norm": norm((i, "mixer_out")),
                "mlp_out_norm": norm((i, "mlp_out")), "out_norm": norm((i, "out")), "out_last_token": last((i, "out")),
            }
            for i in range(self.count)
        ]
        return {
            "embed_norm": norm("embed"), "embed_last_token": last("embed"), "layers": layers,
            "final_norm_out_norm": norm("final_norm"), "final_norm_out_last_token": last("final_norm"),
        }

    def remove(self):
        for handle in self.handles:
            handle.remove()


def margin(logits):
    best = logits.topk(2).values
    return best[0] - best[1]


def greedy(model, ids):
    """Continuation with the cache, each step checked against the whole sequence at once."""
    known, step, cache, worst = list(ids), list(ids), None, 0.0
    tokens, margins, best = [], [], []
    for _ in range(NEW_TOKENS):
        out = model(input_ids=torch.tensor([step]), cache=cache, use_cache=True)
        cache, logits = out.cache, out.logits[0, -1]
        worst = max(worst, float((logits - forward(model, known)[-1]).abs().max()))
        step = [int(logits.argmax())]
        known += step
        tokens += step
        margins.append(margin(logits))
        best.append(logits.max())
    assert worst < 1e-4, worst
    return {
        "tokens": tokens, "top2_margin": floats(torch.stack(margins)), "top1_logit": floats(torch.stack(best)),
        "cached_vs_uncached_max_abs_diff": floats(worst),
    }


def prompts(length, tokenizer, vocab_size, seed):
    """Candidates for a prompt, as ids and text: without end, and the same ones every time."""
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    of_text = encode(TEXT)
    generator = np.random.default_rng([seed, length])
    while True:
        if length in (7, 300):
            start = int(generator.integers(0, len(of_text) - length))
            ids = of_text[start:start + length]
            text = tokenizer.decode(ids, skip_special_tokens=False)
            yield ids, text if encode(text) == ids else None
        else:
            yield [int(i) for i in generator.integers(3, vocab_size, length)], None


def sequence(model, double, length, candidates):
    for ids, text in candidates:
        recorder = Recorder(model)
        logits = forward(model, ids)
        continuation = greedy(model, ids)
        recorder.remove()
        router = recorder.router_min_margin()
        clear = min(continuation["top2_margin"]) >= LEAST_MARGIN and (router is None or router >= LEAST_ROUTER_MARGIN)
        if clear and len(set(continuation["tokens"])) >= LEAST_DISTINCT:
            break
    last = logits[-1]
    noise = (logits.double() - forward(double, ids)).abs()
    result = {
        "name": f"len{length}", "input_ids": ids, "text": text, "last_logits": floats(last),
        "argmax": int(last.argmax()), "top2_margin": floats(margin(last)), "argmax_all": logits.argmax(-1).tolist(),
        "router_min_margin": None if router is None else floats(router),
        "f32_vs_f64_max_abs_diff": {"last": floats(noise[-1].max()), "all_positions": floats(noise.max())},
        "greedy": continuation,
    }
    if length == 7:
        result["all_logits"] = floats(logits)
        recorder = Recorder(model)
        forward(model, ids)
        recorder.remove()
        result["trace"] = recorder.trace()
    return result


def rope(model):
    """Frequencies and factors as loaded: one table, or one per kind of layer."""
    inner = text_model(model)
    module = next(m for m in inner.modules() if type(m).__name__.endswith("RotaryEmbedding"))
    values = {}
    for kind in ["full_attention_", "sliding_attention_"] if hasattr(module, "full_attention_inv_freq") else [""]:
        values[f"{kind}inv_freq"] = floats(getattr(module, f"{kind}inv_freq"))
        values[f"{kind}attention_scaling"] = getattr(module, f"{kind}attention_scaling")
    return values


def write_checkpoint(spec, seed, folder):
    """The files of a checkpoint; its configuration in both spellings."""
    model = spec["class"](spec["config"])
    model.requires_grad_(False)
    random_weights(model, seed)
    model.config.dtype = torch.bfloat16
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    parts = [config, *(config[key] for key in ["text_config", "vision_config"] if key in config)]
    for part in parts:
        part.pop("dtype", None)
    config["dtype"] = "bfloat16"
    write_json(folder / "config.json", config)
    spec["published"](config)
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.57.1" if "gemma4" not in config["model_type"] else "5.5.0"
    write_json(folder / "config.v4.json", config)
    for file in sorted((MODELS.parent / "tokenizers" / spec["tokenizer"]).glob("tokenizer*.json")):
        shutil.copy(file, folder / file.name)
    (folder / "model.safetensors").chmod(0o644)


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def make(build):
    name = build.__name__
    seed = zlib.crc32(f"cortiq fixture {name}".encode())
    spec = build()
    folder = MODELS / name
    shutil.rmtree(folder, ignore_errors=True)
    write_checkpoint(spec, seed, folder)

    model = load(spec["class"], folder)
    double = load(spec["class"], folder).double()
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    vocab_size = spec["config"].get_text_config().vocab_size
    sequences = [
        sequence(model, double, length, prompts(length, tokenizer, vocab_size, seed)) for length in LENGTHS
    ]
    probe = sequences[1]["input_ids"]
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        shutil.copy(folder / "config.v4.json", pathlib.Path(copy) / "config.json")
        assert torch.equal(forward(load(spec["class"], copy), probe), forward(model, probe)), "config.v4.json"
    auto = load(transformers.AutoModelForCausalLM, folder)
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    golden = {
        "format": "hf-golden/1", "model": name, "seed": seed, "about": spec["about"],
        "architecture": spec["class"].__name__, "model_type": model.config.model_type,
        "tokenizer": spec["tokenizer"], "stored_dtype": "bf16",
        "stored_dtypes": sorted({str(t.dtype).removeprefix("torch.") for t in stored.values()}),
        "parameters": sum(t.numel() for t in stored.values()),
        "compute": "transformers on the CPU: weights cast to float32, eager attention, eager experts, one thread",
        "auto_model_class": type(auto).__name__,
        "auto_model_max_abs_diff": floats((forward(auto, probe) - forward(model, probe)).abs().max()),
        "vocab_size": vocab_size, "rope": rope(model),
        "versions": {
            "python": platform.python_version(), "torch": torch.__version__,
            "transformers": transformers.__version__, "tokenizers": tokenizers.__version__,
            "safetensors": safetensors.__version__, "numpy": np.__version__,
        },
        "sequences": sequences,
    }
    (folder / "golden.json").write_text(json.dumps(golden, separators=(",", ":")))
    size = sum(file.stat().st_size for file in folder.iterdir())
    deviation = np.std(sequences[1]["all_logits"])
    routers = [s["router_min_margin"] for s in sequences if s["router_min_margin"] is not None]
    print(f"{name}: {golden['parameters']} parameters, {size} bytes, logits' deviation {deviation:.2f}, "
          f"float32's noise {max(s['f32_vs_f64_max_abs_diff']['all_positions'] for s in sequences):.1e}, "
          f"router margins {routers}")


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    wanted = sys.argv[1:] or [build.__name__ for build in SPECS]
    for build in SPECS:
        if build.__name__ in wanted:
            make(build)


if __name__ == "__main__":
    main()
