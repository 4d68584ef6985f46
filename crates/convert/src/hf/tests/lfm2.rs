//! LFM2 and LFM2-MoE: variants beside the fixtures, checkpoints of random weights built from the published names.

use std::sync::Arc;

use cortiq_cmf::{CmfFile, LayerType};
use cortiq_model::{MappedWeights, Program};
use cortiq_quant::Encoding;
use serde_json::json;

use super::*;
use crate::{ConvertOptions, NoProgress, convert};

const HIDDEN: usize = 64;
const VOCAB: usize = 768;
const HEAD_DIM: usize = 16;

/// The configuration as published: key names of its own, no `layer_types`.
fn lfm2() -> Value {
    json!({
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "block_auto_adjust_ff_dim": true,
        "block_dim": HIDDEN,
        "block_ff_dim": 144,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 64,
        "conv_L_cache": 3,
        "conv_bias": false,
        "conv_dim": HIDDEN,
        "full_attn_idxs": [1],
        "hidden_size": HIDDEN,
        "max_position_embeddings": 1024,
        "norm_eps": 1e-5,
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "rope_theta": 1e6,
        "tie_embedding": true,
        "vocab_size": VOCAB,
    })
}

fn lfm2_moe() -> Value {
    json!({
        "architectures": ["Lfm2MoeForCausalLM"],
        "model_type": "lfm2_moe",
        "conv_L_cache": 3,
        "conv_bias": false,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "layer_types": ["conv", "full_attention", "conv"],
        "max_position_embeddings": 1024,
        "moe_intermediate_size": 32,
        "norm_eps": 1e-5,
        "norm_topk_prob": true,
        "num_attention_heads": 4,
        "num_dense_layers": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "rope_theta": 1e6,
        "routed_scaling_factor": 1.0,
        "use_expert_bias": true,
        "vocab_size": VOCAB,
    })
}

/// Published names and shapes: layer 1 has attention, the others a convolution; `ffn` is the width of dense layers,
/// from layer `dense` on there are experts.
fn tensors(ffn: usize, dense: usize) -> Vec<Stored> {
    let mut list: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.embedding_norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..3 {
        let mut add = |name: &str, shape: &[usize]| list.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
        add("operator_norm.weight", &[HIDDEN]);
        add("ffn_norm.weight", &[HIDDEN]);
        if layer == 1 {
            for (name, rows) in [("q_proj", HIDDEN), ("k_proj", 32), ("v_proj", 32), ("out_proj", HIDDEN)] {
                add(&format!("self_attn.{name}.weight"), &[rows, HIDDEN]);
            }
            add("self_attn.q_layernorm.weight", &[HEAD_DIM]);
            add("self_attn.k_layernorm.weight", &[HEAD_DIM]);
        } else {
            add("conv.in_proj.weight", &[3 * HIDDEN, HIDDEN]);
            add("conv.conv.weight", &[HIDDEN, 1, 3]);
            add("conv.out_proj.weight", &[HIDDEN, HIDDEN]);
        }
        let mut gated = |stem: &str, width: usize| {
            for (name, shape) in [("w1", [width, HIDDEN]), ("w3", [width, HIDDEN]), ("w2", [HIDDEN, width])] {
                add(&format!("{stem}.{name}.weight"), &shape);
            }
        };
        if layer < dense {
            gated("feed_forward", ffn);
        } else {
            (0..4).for_each(|expert| gated(&format!("feed_forward.experts.{expert}"), 32));
            add("feed_forward.gate.weight", &[4, HIDDEN]);
            add("feed_forward.expert_bias", &[4]);
        }
    }
    let mut state = 1u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (f64::from(state) / f64::from(u32::MAX) - 0.5) as f32
    };
    let stored = |(name, shape): (String, Vec<usize>)| {
        let bytes = (0..shape.iter().product()).flat_map(|_| random().to_le_bytes()).collect();
        Stored { name, dtype: Dtype::F32, shape, bytes }
    };
    list.into_iter().map(stored).collect()
}

/// A checkpoint of `config` and `tensors`, with the tokenizer of another one.
fn checkpoint(config: &Value, tensors: Vec<Stored>) -> Checkpoint {
    let copy = Checkpoint::of("qwen3");
    std::fs::write(copy.path().join(CONFIG), config.to_string()).unwrap();
    copy.edit(|stored| *stored = tensors);
    copy
}

fn dense() -> Checkpoint {
    // 2/3 of 144 is 96, which is rounded up to 128.
    checkpoint(&lfm2(), tensors(128, 3))
}

fn moe() -> Checkpoint {
    checkpoint(&lfm2_moe(), tensors(96, 1))
}

#[test]
fn header_and_names() {
    for (copy, name) in [(dense(), "lfm2"), (moe(), "lfm2_moe")] {
        let model = copy.import().unwrap();
        let a = &model.header.arch;
        assert_eq!(a.arch_name, name);
        assert_eq!(a.layer_types, [LayerType::ShortConv, LayerType::FullAttention, LayerType::ShortConv]);
        assert_eq!((a.rms_norm_eps, a.rope_theta, a.tie_word_embeddings), (1e-5, 1e6, true));
        assert_eq!((a.head_dim, a.num_kv_heads, a.linear_conv_kernel_dim), (HEAD_DIM, 2, Some(3)));
        assert!(model.header.extensions.is_empty() && model.notes.is_empty());
        let stored = tensors(if name == "lfm2" { 128 } else { 96 }, if name == "lfm2" { 3 } else { 1 });
        assert_eq!(model.tensors.len(), stored.len());
        let mut pairs = vec![
            ("model.norm.weight", "model.embedding_norm.weight"),
            ("model.layers.0.input_layernorm.weight", "model.layers.0.operator_norm.weight"),
            ("model.layers.0.post_attention_layernorm.weight", "model.layers.0.ffn_norm.weight"),
            ("model.layers.0.short_conv.in_proj.weight", "model.layers.0.conv.in_proj.weight"),
            ("model.layers.0.short_conv.conv.weight", "model.layers.0.conv.conv.weight"),
            ("model.layers.0.short_conv.out_proj.weight", "model.layers.0.conv.out_proj.weight"),
            ("model.layers.1.self_attn.o_proj.weight", "model.layers.1.self_attn.out_proj.weight"),
            ("model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.q_layernorm.weight"),
            ("model.layers.1.self_attn.k_norm.weight", "model.layers.1.self_attn.k_layernorm.weight"),
            ("model.layers.0.mlp.gate_proj.weight", "model.layers.0.feed_forward.w1.weight"),
            ("model.layers.0.mlp.up_proj.weight", "model.layers.0.feed_forward.w3.weight"),
            ("model.layers.0.mlp.down_proj.weight", "model.layers.0.feed_forward.w2.weight"),
        ];
        if name == "lfm2_moe" {
            pairs.extend([
                ("model.layers.1.mlp.gate.weight", "model.layers.1.feed_forward.gate.weight"),
                ("model.layers.1.mlp.expert_bias", "model.layers.1.feed_forward.expert_bias"),
                ("model.layers.2.mlp.experts.3.gate_proj.weight", "model.layers.2.feed_forward.experts.3.w1.weight"),
                ("model.layers.2.mlp.experts.3.up_proj.weight", "model.layers.2.feed_forward.experts.3.w3.weight"),
                ("model.layers.2.mlp.experts.3.down_proj.weight", "model.layers.2.feed_forward.experts.3.w2.weight"),
            ]);
        }
        for (ours, theirs) in pairs {
            let tensor = model.tensors.iter().find(|t| t.name == ours).unwrap_or_else(|| panic!("{ours}"));
            let source = stored.iter().find(|t| t.name == theirs).unwrap();
            let bytes: Vec<u8> = (tensor.load)().unwrap().into_iter().flat_map(f32::to_le_bytes).collect();
            assert!(bytes == source.bytes, "{ours}");
        }
        let moe = a.moe.as_ref().map(|m| (m.num_experts, m.top_k, m.moe_intermediate_size, m.router_sigmoid));
        assert_eq!(moe, (name == "lfm2_moe").then_some((4, 2, 32, true)));
        let scaling = a.moe.as_ref().map(|m| (m.norm_topk_prob, m.routed_scaling_factor, m.norm_topk_eps));
        assert_eq!(scaling, (name == "lfm2_moe").then_some((true, None, None)));
    }
}

#[test]
fn newer_spellings_mean_the_same() {
    let copy = dense();
    let before = copy.import().unwrap().header.arch;
    for (key, value) in [
        ("full_attn_idxs", Value::Null),
        ("layer_types", json!(["conv", "full_attention", "conv"])),
        ("block_ff_dim", Value::Null),
        ("intermediate_size", json!(144)),
        ("block_dim", Value::Null),
        ("conv_dim", Value::Null),
        ("tie_embedding", Value::Null),
        ("tie_word_embeddings", json!(true)),
        ("rope_theta", Value::Null),
        ("rope_parameters", json!({"rope_type": "default", "rope_theta": 1e6})),
    ] {
        copy.set(CONFIG, key, value);
        if !["full_attn_idxs", "block_ff_dim"].contains(&key) {
            assert_eq!(copy.import().unwrap().header.arch, before, "{key}");
        }
    }
    for key in ["rope_parameters", "norm_eps", "tie_word_embeddings", "conv_L_cache"] {
        copy.set(CONFIG, key, Value::Null);
        assert_eq!(copy.import().unwrap().header.arch, before, "{key}");
    }
}

#[test]
fn ffn_width() {
    for (changes, width) in [
        (vec![], 128),
        (vec![("block_multiple_of", json!(32))], 96),
        (vec![("block_ffn_dim_multiplier", json!(1.4))], 192),
        (vec![("block_ffn_dim_multiplier", Value::Null)], 96),
        (vec![("block_ff_dim", json!(12_288)), ("block_multiple_of", json!(256))], 8192),
        (vec![("block_auto_adjust_ff_dim", json!(false))], 144),
    ] {
        let mut config = lfm2();
        changes.iter().for_each(|(key, value)| config[*key] = value.clone());
        let model = checkpoint(&config, tensors(width, 3)).import().unwrap();
        assert_eq!(model.header.arch.intermediate_size, width, "{changes:?}");
    }
}

#[test]
fn refusals() {
    let cases = [
        (dense(), "conv_bias", json!(true), "conv_bias"),
        (dense(), "conv_dim", json!(32), "conv_dim"),
        (dense(), "block_dim", json!(32), "block_dim"),
        (dense(), "conv_L_cache", json!(1), "conv_L_cache"),
        (dense(), "full_attn_idxs", json!([3]), "full_attn_idxs"),
        (dense(), "layer_types", json!(["conv", "mamba", "conv"]), "mamba"),
        (dense(), "block_multiple_of", json!(0), "block_multiple_of"),
        (dense(), "block_ffn_dim_multiplier", json!(0), "block_ffn_dim_multiplier"),
        (dense(), "full_attn_idxs", json!([1, 2]), "model.layers.2.conv."),
        (moe(), "num_experts_per_tok", json!(5), "num_experts_per_tok"),
        (moe(), "num_dense_layers", json!(4), "num_dense_layers"),
        (moe(), "use_expert_bias", json!(false), "expert_bias"),
    ];
    for (copy, key, value, needle) in cases {
        copy.set(CONFIG, key, value.clone());
        let message = copy.refusal();
        assert!(message.contains(needle), "{key} = {value}: {message}");
    }
}

#[test]
fn converted_files_lower_to_programs() {
    for copy in [dense(), moe()] {
        let out = tempfile::tempdir().unwrap();
        let output = out.path().join("m.cmf");
        let options = ConvertOptions::new(Encoding::Q8_2f);
        convert(&HfSource::local(copy.path()).unwrap(), &output, &options, &NoProgress).unwrap();
        let file = Arc::new(CmfFile::open(&output).unwrap());
        assert!(file.verify().ok);
        let weights = MappedWeights::new(Arc::clone(&file), None);
        if let Err(error) = Program::from_weights(file.header(), &weights) {
            panic!("{}: {error}", file.header().arch.arch_name);
        }
    }
}
