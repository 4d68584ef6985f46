//! Tiny models of each architecture, written as converters write them from the fixtures, must give
//! the values of the safetensors files.

use std::collections::BTreeMap;

use cortiq_cmf::{CmfFile, RopeScaling};
use cortiq_quant::Encoding;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::writer::{Item, Writer};
use super::{fixture, read_json, text};
use crate::gguf::rope::llama3_divisors;
use crate::gguf::{GgufError, import};
use crate::{ConvertOptions, ImportedModel, NativeDtype, NoProgress, import_gguf};

const F32: u32 = 0;
const F16: u32 = 1;
const Q4_0: u32 = 2;
const Q8_0: u32 = 8;
const IQ2_XXS: u32 = 16;
const BF16: u32 = 30;

/// A tensor of a checkpoint.
struct Source {
    shape: Vec<u64>,
    type_id: u32,
    data: Vec<u8>,
}

impl Source {
    fn values(&self) -> Vec<f32> {
        match self.type_id {
            F32 => self.data.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
            BF16 => self.data.chunks(2).map(|b| half::bf16::from_le_bytes(b.try_into().unwrap()).to_f32()).collect(),
            other => panic!("type {other}"),
        }
    }
}

fn checkpoint(name: &str) -> BTreeMap<String, Source> {
    let mut out = BTreeMap::new();
    for entry in std::fs::read_dir(fixture(&format!("models/{name}"))).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "safetensors") {
            continue;
        }
        let bytes = std::fs::read(path).unwrap();
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            let type_id = match view.dtype() {
                Dtype::F32 => F32,
                Dtype::BF16 => BF16,
                other => panic!("{other:?}"),
            };
            let shape = view.shape().iter().map(|&d| d as u64).collect();
            out.insert(name, Source { shape, type_id, data: view.data().to_vec() });
        }
    }
    out
}

/// The name that converters give a tensor.
fn gguf_name(name: &str) -> String {
    match name {
        "model.embed_tokens.weight" => return "token_embd.weight".to_owned(),
        "model.norm.weight" => return "output_norm.weight".to_owned(),
        "lm_head.weight" => return "output.weight".to_owned(),
        _ => {}
    }
    let (layer, stem) = name.strip_prefix("model.layers.").unwrap().split_once('.').unwrap();
    let (stem, suffix) = stem.rsplit_once('.').unwrap();
    let stem = match stem {
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" => "ffn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        other => panic!("{other}"),
    };
    format!("blk.{layer}.{stem}.{suffix}")
}

/// What converters do to q and k of llama files: inside each head, `[2, head_dim / 2]` rows become
/// `[head_dim / 2, 2]`.
fn interleave_rows(data: &[u8], heads: usize, rows: usize) -> Vec<u8> {
    let row_bytes = data.len() / rows;
    let head_dim = rows / heads;
    let mut out = Vec::with_capacity(data.len());
    for head in 0..heads {
        for pair in 0..head_dim / 2 {
            for side in 0..2 {
                let row = head * head_dim + side * (head_dim / 2) + pair;
                out.extend(&data[row * row_bytes..(row + 1) * row_bytes]);
            }
        }
    }
    out
}

/// A small byte-level vocabulary.
pub(super) fn add_tokenizer(writer: &mut Writer) {
    let tokens = ["a", "b", "ab", "<s>", "</s>"].map(str::to_owned).to_vec();
    writer.set("tokenizer.ggml.model", "gpt2");
    writer.set("tokenizer.ggml.pre", "gpt-2");
    writer.set("tokenizer.ggml.tokens", Item::Strs(tokens));
    writer.set("tokenizer.ggml.token_type", Item::I32s(vec![1, 1, 1, 3, 3]));
    writer.set("tokenizer.ggml.merges", Item::Strs(vec!["a b".to_owned()]));
    writer.set("tokenizer.ggml.bos_token_id", Item::U32(3));
    writer.set("tokenizer.ggml.eos_token_id", Item::U32(4));
}

fn config(name: &str) -> Value {
    read_json(&fixture(&format!("models/{name}/config.json")))
}

fn number(config: &Value, key: &str) -> u64 {
    config[key].as_u64().unwrap_or_else(|| panic!("{key}"))
}

/// The fixture `name` as a GGUF file of architecture `arch`.
fn written(name: &str, arch: &str) -> Writer {
    let config = config(name);
    let mut writer = Writer::default();
    writer.set("general.architecture", arch);
    let mut set = |key: &str, item: Item| writer.set(&format!("{arch}.{key}"), item);
    for (key, from) in [
        ("block_count", "num_hidden_layers"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("context_length", "max_position_embeddings"),
    ] {
        set(key, Item::U32(number(&config, from) as u32));
    }
    if let Some(head_dim) = config["head_dim"].as_u64() {
        set("attention.key_length", Item::U32(head_dim as u32));
        set("attention.value_length", Item::U32(head_dim as u32));
        set("rope.dimension_count", Item::U32(head_dim as u32));
    }
    let float = |value: &Value| Item::F32(value.as_f64().unwrap() as f32);
    set("attention.layer_norm_rms_epsilon", float(&config["rms_norm_eps"]));
    set("rope.freq_base", float(&config["rope_parameters"]["rope_theta"]));
    add_tokenizer(&mut writer);
    for (name, tensor) in checkpoint(name) {
        let rows = tensor.shape[0] as usize;
        let heads = match name.rsplit_once('.').unwrap().0 {
            stem if arch != "llama" || !stem.contains("self_attn") => 0,
            stem if stem.ends_with("q_proj") => number(&config, "num_attention_heads") as usize,
            stem if stem.ends_with("k_proj") => number(&config, "num_key_value_heads") as usize,
            _ => 0,
        };
        let data = match heads {
            0 => tensor.data.clone(),
            heads => interleave_rows(&tensor.data, heads, rows),
        };
        writer.tensor(&gguf_name(&name), &tensor.shape, tensor.type_id, data);
    }
    writer
}

fn imported(writer: &Writer) -> ImportedModel {
    import(writer.file()).unwrap()
}

/// All tensors of the fixture are there, and no others, with their values.
fn assert_same_tensors(name: &str, model: &ImportedModel) {
    let sources = checkpoint(name);
    assert_eq!(model.tensors.len(), sources.len(), "{name}");
    for tensor in &model.tensors {
        let source = &sources[&tensor.name];
        let shape: Vec<u64> = tensor.shape.iter().map(|&d| d.into()).collect();
        assert_eq!(shape, source.shape, "{name} {}", tensor.name);
        assert_eq!((tensor.load)().unwrap(), source.values(), "{name} {}", tensor.name);
        let native = if source.type_id == F32 { NativeDtype::F32 } else { NativeDtype::Bf16 };
        assert_eq!(tensor.native, native, "{name} {}", tensor.name);
    }
}

#[test]
fn fixtures_come_back_with_their_values_and_sizes() {
    for (name, arch, tied, extensions) in [
        ("llama_gqa", "llama", false, &[] as &[&str]),
        ("llama_tied_bias", "llama", true, &["linear_bias"]),
        ("mistral_swa", "llama", false, &[]),
        ("qwen2_bias", "qwen2", true, &[]),
        ("qwen3", "qwen3", true, &[]),
    ] {
        let config = config(name);
        let model = imported(&written(name, arch));
        assert_same_tensors(name, &model);
        let header = &model.header.arch;
        let hidden = number(&config, "hidden_size");
        let heads = number(&config, "num_attention_heads");
        let head_dim = config["head_dim"].as_u64().unwrap_or(hidden / heads);
        for (found, expected) in [
            (header.hidden_size, hidden),
            (header.num_attention_heads, heads),
            (header.head_dim, head_dim),
            (header.intermediate_size, number(&config, "intermediate_size")),
            (header.num_layers, number(&config, "num_hidden_layers")),
            (header.layer_types.len(), number(&config, "num_hidden_layers")),
            (header.num_kv_heads, number(&config, "num_key_value_heads")),
            (header.vocab_size, number(&config, "vocab_size")),
            (header.max_position_embeddings, number(&config, "max_position_embeddings")),
        ] {
            assert_eq!(found as u64, expected, "{name}");
        }
        assert_eq!(header.arch_name, arch);
        assert_eq!(Some(header.rms_norm_eps), config["rms_norm_eps"].as_f64(), "{name}");
        let theta = config["rope_parameters"]["rope_theta"].as_f64();
        assert_eq!(Some(header.rope_theta), theta, "{name}");
        assert_eq!(header.partial_rotary_factor, 1.0);
        assert_eq!(header.tie_word_embeddings, tied, "{name}");
        assert_eq!(header.rope_scaling, None);
        assert_eq!(model.header.extensions, extensions, "{name}");
        model.header.check().unwrap();
        let tokens = model.header.tokenizer_config.unwrap();
        assert_eq!((tokens.bos_token_id, tokens.eos_token_ids), (Some(3), vec![4]));
        assert!(model.tokenizer_json.is_some() && model.notes.is_empty());
    }
}

#[test]
fn sliding_window_and_sampling_defaults() {
    let mut writer = written("mistral_swa", "llama");
    writer.set("llama.attention.sliding_window", Item::U32(32));
    writer.set("general.sampling.temp", Item::F32(0.6));
    writer.set("general.sampling.top_k", Item::I32(20));
    let header = imported(&writer).header;
    assert_eq!((header.arch.sliding_window, header.arch.sliding_layers), (Some(32), None));
    let generation = header.generation.unwrap();
    assert_eq!((generation.temperature, generation.top_k), (Some(0.6), Some(20)));

    let mut writer = written("qwen3", "qwen3");
    writer.set("qwen3.attention.sliding_window", Item::U32(0));
    let header = imported(&writer).header;
    assert_eq!((header.arch.sliding_window, header.generation), (None, None));
}

#[test]
fn scaling_keys_become_rope_scaling() {
    let mut writer = written("llama_linear_rope", "llama");
    writer.set("llama.rope.scaling.type", "linear");
    writer.set("llama.rope.scaling.factor", Item::F32(4.0));
    let model = imported(&writer);
    assert_same_tensors("llama_linear_rope", &model);
    assert_eq!(model.header.arch.rope_scaling, Some(RopeScaling::Linear { factor: 4.0 }));
    assert_eq!(model.header.extensions, ["rope_scaling"]);
    model.header.check().unwrap();

    let mut writer = written("qwen3_yarn", "qwen3");
    writer.set("qwen3.rope.scaling.type", "yarn");
    writer.set("qwen3.rope.scaling.factor", Item::F32(4.0));
    writer.set("qwen3.rope.scaling.original_context_length", Item::U32(128));
    writer.set("qwen3.rope.scaling.yarn_beta_fast", Item::F32(16.0));
    let expected = RopeScaling::Yarn {
        factor: 4.0,
        original_max_position_embeddings: 128,
        beta_fast: 16.0,
        beta_slow: 1.0,
        truncate: true,
        attention_factor: None,
        mscale: None,
        mscale_all_dim: None,
    };
    assert_eq!(imported(&writer).header.arch.rope_scaling, Some(expected));

    let mut writer = written("qwen3", "qwen3");
    writer.set("qwen3.rope.scaling.type", "none");
    assert_eq!(imported(&writer).header.arch.rope_scaling, None);

    let mut writer = written("llama_gqa", "llama");
    writer.set("llama.rope.scale_linear", Item::F32(2.0));
    let scaling = imported(&writer).header.arch.rope_scaling;
    assert_eq!(scaling, Some(RopeScaling::Linear { factor: 2.0 }));
}

/// The divisors of the llama3 rule as converters compute them, in f32.
fn divisors(dim: usize, theta: f64, factor: f64, original: f64) -> Vec<f32> {
    llama3_divisors(dim, theta, factor, original).map(|d| d as f32).collect()
}

#[test]
fn frequency_divisors_give_the_llama3_parameters() {
    let golden = read_json(&fixture("models/llama3_rope/golden.json"));
    let stored = &golden["rope"];
    for (factor, original, dim) in [(8.0, 64.0, 64), (8.0, 8192.0, 128), (32.0, 8192.0, 64), (4.0, 32768.0, 64)] {
        let theta = 500_000.0;
        let values = divisors(dim, theta, factor, original);
        let found = crate::gguf::rope::from_divisors(&values, dim, theta, None).unwrap();
        let expected = RopeScaling::Llama3 {
            factor,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: original as usize,
        };
        assert_eq!(found, Some(expected), "{stored}");
    }
    let mut writer = written("llama3_rope", "llama");
    let values = divisors(64, 500_000.0, 8.0, 64.0);
    assert!(values.contains(&1.0) && values.contains(&8.0));
    assert!(values.iter().any(|&v| v > 1.0 && v < 8.0));
    writer.f32_tensor("rope_freqs.weight", &[32], &values);
    let model = imported(&writer);
    assert_same_tensors("llama3_rope", &model);
    assert_eq!(model.header.extensions, ["rope_scaling"]);
    model.header.check().unwrap();
    // All ones: nothing is scaled.
    assert_eq!(crate::gguf::rope::from_divisors(&[1.0; 4], 8, 1e4, None).unwrap(), None);
}

/// The frequencies of the fixture (from transformers) divided by what we recover.
#[test]
fn recovered_divisors_agree_with_the_golden_frequencies() {
    let golden = read_json(&fixture("models/llama3_rope/golden.json"));
    let inv_freq = find_inv_freq(&golden["rope"]);
    let expected = llama3_divisors(64, 500_000.0, 8.0, 64.0);
    assert_eq!(inv_freq.len(), 32);
    for (i, (scaled, divisor)) in inv_freq.iter().zip(expected).enumerate() {
        let plain = 500_000f64.powf(-2.0 * i as f64 / 64.0);
        assert!((plain / divisor - scaled).abs() <= 1e-5 * scaled, "{i}");
    }
}

fn find_inv_freq(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(items) if items.iter().all(Value::is_number) => {
            items.iter().map(|v| v.as_f64().unwrap()).collect()
        }
        Value::Object(map) => map.values().map(find_inv_freq).max_by_key(Vec::len).unwrap(),
        _ => Vec::new(),
    }
}

/// Scores do not change when q and k are brought from pair order to half-split order, with RoPE
/// turning pairs before and halves after; dimensions that do not turn keep their place.
#[test]
fn partial_rotary_heads_are_reordered_consistently() {
    let (head_dim, rotary_dim, heads) = (8usize, 6usize, 2usize);
    let mut writer = written("llama_gqa", "llama");
    let hidden = 128;
    writer.set("llama.block_count", Item::U32(1));
    writer.set("llama.attention.head_count", Item::U32(heads as u32));
    writer.set("llama.attention.head_count_kv", Item::U32(heads as u32));
    for key in ["key_length", "value_length"] {
        writer.set(&format!("llama.attention.{key}"), Item::U32(head_dim as u32));
    }
    writer.set("llama.rope.dimension_count", Item::U32(rotary_dim as u32));
    writer.tensors.retain(|t| !t.name.starts_with("blk.") || t.name.starts_with("blk.0."));
    let rows = (heads * head_dim) as u64;
    let mut seed = 1u32;
    let mut random = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let mut stored = BTreeMap::new();
    for (name, shape) in
        [("q", [rows, hidden]), ("k", [rows, hidden]), ("v", [rows, hidden]), ("output", [hidden, rows])]
    {
        let name = format!("blk.0.attn_{name}.weight");
        let values: Vec<f32> = (0..shape[0] * shape[1]).map(|_| random()).collect();
        writer.tensors.retain(|t| t.name != name);
        writer.f32_tensor(&name, &shape, &values);
        stored.insert(name, values);
    }
    let model = imported(&writer);
    assert_eq!(model.header.arch.partial_rotary_factor, 0.75);
    let load = |name: &str| {
        let name = format!("model.layers.0.self_attn.{name}.weight");
        (model.tensors.iter().find(|t| t.name == name).unwrap().load)().unwrap()
    };
    let x: Vec<f32> = (0..hidden).map(|_| random()).collect();
    let project = |w: &[f32]| -> Vec<f64> {
        let dot = |row: &[f32]| row.iter().zip(&x).map(|(a, b)| f64::from(a * b)).sum();
        w.chunks(hidden as usize).map(dot).collect()
    };
    let turn = |v: &[f64], position: f64, pair: &dyn Fn(usize) -> (usize, usize)| {
        let mut out = v.to_vec();
        for j in 0..rotary_dim / 2 {
            let angle = position * 1e4f64.powf(-2.0 * j as f64 / rotary_dim as f64);
            let (a, b) = pair(j);
            out[a] = v[a] * angle.cos() - v[b] * angle.sin();
            out[b] = v[a] * angle.sin() + v[b] * angle.cos();
        }
        out
    };
    let score = |q: &[f64], k: &[f64], pair: &dyn Fn(usize) -> (usize, usize)| -> f64 {
        turn(q, 7.0, pair).iter().zip(turn(k, 3.0, pair)).map(|(a, b)| a * b).sum()
    };
    let neighbours = |j: usize| (2 * j, 2 * j + 1);
    let halves = |j: usize| (j, j + rotary_dim / 2);
    let (q0, k0) = (project(&stored["blk.0.attn_q.weight"]), project(&stored["blk.0.attn_k.weight"]));
    let (q1, k1) = (project(&load("q_proj")), project(&load("k_proj")));
    assert_ne!(q0, q1);
    for head in 0..heads {
        let part = head * head_dim..(head + 1) * head_dim;
        let before = score(&q0[part.clone()], &k0[part.clone()], &neighbours);
        let after = score(&q1[part.clone()], &k1[part.clone()], &halves);
        assert!((before - after).abs() < 1e-9, "{before} {after}");
        // The last two rows of each head do not turn.
        assert_eq!(q0[part.end - 2..part.end], q1[part.end - 2..part.end]);
    }
    assert_eq!(load("v_proj"), stored["blk.0.attn_v.weight"]);
}

#[test]
fn native_types_are_told_apart() {
    let mut writer = written("llama_gqa", "llama");
    for tensor in &mut writer.tensors {
        let values = tensor.shape.iter().product::<u64>() as usize;
        match tensor.name.as_str() {
            "blk.0.ffn_gate.weight" => (tensor.type_id, tensor.data) = (F16, vec![0; values * 2]),
            "blk.0.ffn_up.weight" => {
                (tensor.type_id, tensor.data) = (Q8_0, vec![1; values / 32 * 34]);
            }
            "blk.0.ffn_down.weight" => {
                (tensor.type_id, tensor.data) = (Q4_0, vec![1; values / 32 * 18]);
            }
            _ => {}
        }
    }
    let model = imported(&writer);
    let native = |name: &str| model.tensors.iter().find(|t| t.name.ends_with(name)).unwrap().native;
    assert_eq!(native("layers.0.mlp.gate_proj.weight"), NativeDtype::F16);
    assert_eq!(native("layers.0.mlp.up_proj.weight"), NativeDtype::Quantised);
    assert_eq!(native("layers.0.mlp.down_proj.weight"), NativeDtype::Quantised);
    assert_eq!(native("layers.0.input_layernorm.weight"), NativeDtype::F32);
}

#[test]
fn inverse_frequency_tables_are_left_out_with_a_note() {
    let mut writer = written("llama_gqa", "llama");
    writer.f32_tensor("blk.0.attn_rot_embd.inv_freq", &[16], &[1.0; 16]);
    let model = imported(&writer);
    assert_same_tensors("llama_gqa", &model);
    assert_eq!(model.notes.len(), 1);
    assert!(model.notes[0].contains("blk.0.attn_rot_embd"), "{:?}", model.notes);
}

#[test]
fn equal_values_per_layer_are_one_value() {
    let mut writer = written("llama_gqa", "llama");
    writer.set("llama.attention.head_count_kv", Item::I32s(vec![2; 3]));
    writer.set("llama.feed_forward_length", Item::I32s(vec![256; 3]));
    assert_same_tensors("llama_gqa", &imported(&writer));
}

#[test]
fn a_bias_on_only_one_of_q_k_v_needs_the_extension() {
    let mut writer = written("qwen2_bias", "qwen2");
    writer.tensors.retain(|t| t.name != "blk.1.attn_k.bias");
    assert_eq!(imported(&writer).header.extensions, ["linear_bias"]);
}

/// One change to a sound file, and what the error must name.
type Case = (&'static str, fn(&mut Writer), &'static [&'static str]);

#[test]
fn what_cannot_be_imported_is_named() {
    let cases: &[Case] = &[
        ("no architecture", |w| w.remove("general.architecture"), &["general.architecture", "missing"]),
        ("architecture", |w| w.set("general.architecture", "mamba"), &["architecture", "mamba", "qwen3"]),
        (
            "block layouts",
            |w| w.set("general.quantization_version", Item::U32(1)),
            &["general.quantization_version", "1"],
        ),
        ("moe", |w| w.set("llama.expert_count", Item::U32(8)), &["ffn_gate_inp", "missing"]),
        ("scaled experts", |w| w.set("llama.expert_weights_scale", Item::F32(2.0)), &["weights_scale", "mixture"]),
        ("no layers", |w| w.remove("llama.block_count"), &["llama.block_count", "missing"]),
        ("many layers", |w| w.set("llama.block_count", Item::U32(u32::MAX)), &["llama.block_count"]),
        (
            "uneven layers",
            |w| w.set("llama.attention.head_count_kv", Item::I32s(vec![2, 2, 1])),
            &["llama.attention.head_count_kv", "equal"],
        ),
        (
            "no epsilon",
            |w| w.remove("llama.attention.layer_norm_rms_epsilon"),
            &["llama.attention.layer_norm_rms_epsilon"],
        ),
        (
            "nan epsilon",
            |w| w.set("llama.attention.layer_norm_rms_epsilon", Item::F32(f32::NAN)),
            &["llama.attention.layer_norm_rms_epsilon", "finite"],
        ),
        ("zero width", |w| w.set("llama.embedding_length", Item::U32(0)), &["llama.embedding_length", "0"]),
        ("negative", |w| w.set("llama.feed_forward_length", Item::I32(-1)), &["llama.feed_forward_length", "negative"]),
        (
            "value length",
            |w| w.set("llama.attention.value_length", Item::U32(16)),
            &["llama.attention.value_length", "16"],
        ),
        ("heads", |w| w.set("llama.attention.head_count_kv", Item::U32(3)), &["llama.attention.head_count_kv", "3"]),
        ("rotary", |w| w.set("llama.rope.dimension_count", Item::U32(33)), &["llama.rope.dimension_count", "33"]),
        (
            "soft cap",
            |w| w.set("llama.attn_logit_softcapping", Item::F32(50.0)),
            &["llama.attn_logit_softcapping", "50"],
        ),
        ("not causal", |w| w.set("llama.attention.causal", Item::Bool(false)), &["llama.attention.causal"]),
        ("longrope", |w| w.set("llama.rope.scaling.type", "longrope"), &["llama.rope.scaling.type", "longrope"]),
        ("linear without factor", |w| w.set("llama.rope.scaling.type", "linear"), &["llama.rope.scaling.factor"]),
        (
            "factor without type",
            |w| w.set("llama.rope.scaling.factor", Item::F32(2.0)),
            &["llama.rope.scaling.type", "missing"],
        ),
        (
            "attention factor",
            |w| w.set("llama.rope.scaling.attn_factor", Item::F32(1.5)),
            &["llama.rope.scaling.attn_factor", "1.5"],
        ),
        (
            "pattern",
            |w| w.set("llama.attention.sliding_window_pattern", Item::U32(6)),
            &["llama.attention.sliding_window_pattern"],
        ),
        (
            "divisors",
            |w| w.f32_tensor("rope_freqs.weight", &[16], &[1.0, 3.0].repeat(8)),
            &["rope_freqs.weight", "llama3"],
        ),
        ("divisor count", |w| w.f32_tensor("rope_freqs.weight", &[4], &[2.0; 4]), &["rope_freqs.weight", "4 divisors"]),
        (
            "unknown tensor",
            |w| w.f32_tensor("blk.0.attn_sinks.weight", &[4], &[0.0; 4]),
            &["blk.0.attn_sinks.weight", "llama"],
        ),
        (
            "q norm in llama",
            |w| w.f32_tensor("blk.0.attn_q_norm.weight", &[32], &[0.0; 32]),
            &["blk.0.attn_q_norm.weight"],
        ),
        ("layer outside", |w| w.f32_tensor("blk.3.attn_norm.weight", &[128], &[0.0; 128]), &["blk.3.attn_norm.weight"]),
        (
            "missing tensor",
            |w| w.tensors.retain(|t| t.name != "blk.2.ffn_up.weight"),
            &["blk.2.ffn_up.weight", "missing"],
        ),
        ("no embedding", |w| w.tensors.retain(|t| t.name != "token_embd.weight"), &["token_embd.weight", "missing"]),
        ("shape", |w| w.set("llama.feed_forward_length", Item::U32(512)), &["ffn_", "512"]),
        (
            "type",
            |w| {
                let tensor = w.tensors.iter_mut().find(|t| t.name == "blk.1.ffn_gate.weight");
                tensor.unwrap().type_id = IQ2_XXS;
            },
            &["blk.1.ffn_gate.weight", "IQ2_XXS"],
        ),
        (
            "more tokens than rows",
            |w| {
                let texts: Vec<String> = (0..1025).map(|i| format!("t{i}")).collect();
                w.set("tokenizer.ggml.tokens", Item::Strs(texts));
                w.set("tokenizer.ggml.token_type", Item::I32s(vec![1; 1025]));
                w.set("tokenizer.ggml.merges", Item::Strs(Vec::new()));
            },
            &["tokenizer.ggml.tokens", "1025"],
        ),
        ("no tokenizer", |w| w.remove("tokenizer.ggml.model"), &["tokenizer.ggml.model"]),
    ];
    for (name, change, words) in cases {
        let mut writer = written("llama_gqa", "llama");
        change(&mut writer);
        let message = import(writer.file()).unwrap_err().to_string();
        for word in *words {
            assert!(message.contains(word), "{name}: {message}");
        }
    }
    let mut writer = written("qwen2_bias", "qwen2");
    writer.set("qwen2.attention.sliding_window", Item::U32(16));
    let message = import(writer.file()).unwrap_err().to_string();
    assert!(message.contains("qwen2.attention.sliding_window"), "{message}");
}

#[test]
fn load_maps_a_file_and_notices_that_it_shrank() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, written("qwen3", "qwen3").bytes()).unwrap();
    let model = crate::gguf::load(&path).unwrap();
    assert_same_tensors("qwen3", &model);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length - 1).unwrap();
    let message = (model.tensors[0].load)().unwrap_err().to_string();
    assert!(message.contains("length"), "{message}");
    drop(model);
    let missing = crate::gguf::load(&dir.path().join("none.gguf")).unwrap_err();
    assert!(matches!(&missing, GgufError::Io { path, .. } if path.ends_with("none.gguf")));
    assert_eq!(text(&config("qwen3"), "model_type"), "qwen3");
}

#[test]
fn a_converted_file_holds_the_values_and_the_tokenizer() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.gguf"), dir.path().join("out.cmf"));
    for (name, arch) in [("llama_gqa", "llama"), ("qwen2_bias", "qwen2")] {
        std::fs::write(&input, written(name, arch).bytes()).unwrap();
        let mut options = ConvertOptions::new(Encoding::F32);
        options.overwrite = true;
        import_gguf(&input, &output, &options, &NoProgress).unwrap();
        let file = CmfFile::open(&output).unwrap();
        let sources = checkpoint(name);
        assert_eq!(file.tensors().len(), sources.len());
        for (index, info) in file.tensors().iter().enumerate() {
            let (rows, cols) = match info.shape.as_slice() {
                [n] => (1, *n as usize),
                [rows, cols] => (*rows as usize, *cols as usize),
                other => panic!("{other:?}"),
            };
            let payload = file.data(index).unwrap();
            let values = cortiq_quant::decode(info.dtype, payload, rows, cols).unwrap();
            assert_eq!(values, sources[&info.name].values(), "{name} {}", info.name);
        }
        let tokenizer = tokenizers::Tokenizer::from_bytes(file.vocab().unwrap()).unwrap();
        assert_eq!(tokenizer.encode_fast("ab", false).unwrap().get_ids(), [2]);
    }
}
