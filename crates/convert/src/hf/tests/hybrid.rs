//! Qwen3-Next, Qwen3.5 and Qwen3.5-MoE: layers, projections, experts, multi-token prediction.

use std::collections::BTreeMap;

use cortiq_cmf::{LayerType, LinearCore, ModelArch, Mtp, NormStyle};
use serde_json::json;

use super::*;

const HYBRID: [&str; 5] = ["qwen3_next", "qwen3_5", "qwen3_5_vl_layout", "qwen3_5_moe", "qwen3_5_moe_vl_layout"];
/// Those with a block of multi-token prediction.
const WITH_MTP: [&str; 3] = ["qwen3_next", "qwen3_5_vl_layout", "qwen3_5_moe_vl_layout"];

fn arch(copy: &Checkpoint) -> ModelArch {
    copy.import().unwrap().header.arch
}

/// Name to shape.
fn shapes(model: &ImportedModel) -> BTreeMap<&str, &[u32]> {
    model.tensors.iter().map(|t| (t.name.as_str(), t.shape.as_slice())).collect()
}

fn values(model: &ImportedModel, name: &str) -> Vec<f32> {
    let tensor = model.tensors.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("{name} is missing"));
    (tensor.load)().unwrap()
}

/// The values of a tensor of the checkpoint itself (bf16).
fn stored(fixture: &str, name: &str) -> Vec<f32> {
    let bytes = std::fs::read(fixtures().join(fixture).join(super::super::safetensors::SINGLE)).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let view = file.tensor(name).unwrap();
    assert_eq!(view.dtype(), Dtype::BF16, "{name}");
    let halves = view.data().chunks_exact(2).map(|b| u16::from_le_bytes(b.try_into().unwrap()));
    halves.map(|half| f32::from_bits(u32::from(half) << 16)).collect()
}

#[test]
fn headers() {
    for fixture in HYBRID {
        let a = Checkpoint::of(fixture).import().unwrap().header.arch;
        use LayerType::{FullAttention, LinearAttention};
        assert_eq!(a.layer_types, [LinearAttention, LinearAttention, LinearAttention, FullAttention], "{fixture}");
        assert_eq!((a.norm_style, a.partial_rotary_factor), (NormStyle::Gemma, 0.25), "{fixture}");
        assert_eq!((a.rope_theta, a.rope_scaling), (1e7, None), "{fixture}");
        let core = LinearCore { kind: "gated_delta_net".to_owned(), num_heads: 4, nphase: None, value_head_dim: 32 };
        assert_eq!(a.linear_core, Some(core), "{fixture}");
        assert_eq!((a.linear_conv_kernel_dim, a.linear_num_key_heads), (Some(4), Some(2)), "{fixture}");
        assert_eq!((a.linear_key_head_dim, a.linear_value_head_dim), (Some(32), Some(32)), "{fixture}");
        assert_eq!(a.linear_num_value_heads, Some(4), "{fixture}");
        let moe = a.moe.map(|m| {
            let shared = m.shared_expert_intermediate_size;
            (m.num_experts, m.top_k, m.moe_intermediate_size, m.norm_topk_prob, shared, m.router_sigmoid)
        });
        let expected = match fixture {
            "qwen3_next" | "qwen3_5_moe" => Some((8, 2, 32, true, Some(64), false)),
            "qwen3_5_moe_vl_layout" => Some((6, 3, 32, true, Some(32), false)),
            _ => None,
        };
        assert_eq!(moe, expected, "{fixture}");
        let mtp = Mtp { num_layers: 1, share_lm_head: true, share_embed: true };
        assert_eq!(a.mtp, WITH_MTP.contains(&fixture).then_some(mtp), "{fixture}");
    }
}

#[test]
fn tensors_have_canonical_names_and_shapes() {
    for fixture in HYBRID {
        let model = Checkpoint::of(fixture).import().unwrap();
        let hidden = model.header.arch.hidden_size as u32;
        let shapes = shapes(&model);
        for (stem, shape) in [
            ("in_proj_qkv.weight", vec![256, hidden]),
            ("in_proj_z.weight", vec![128, hidden]),
            ("in_proj_b.weight", vec![4, hidden]),
            ("in_proj_a.weight", vec![4, hidden]),
            ("conv1d.weight", vec![256, 1, 4]),
            ("A_log", vec![4]),
            ("dt_bias", vec![4]),
            ("norm.weight", vec![32]),
            ("out_proj.weight", vec![hidden, 128]),
        ] {
            assert_eq!(shapes[format!("model.layers.1.linear_attn.{stem}").as_str()], shape, "{fixture} {stem}");
        }
        let a = &model.header.arch;
        let queries = 2 * (a.num_attention_heads * a.head_dim) as u32;
        assert_eq!(shapes["model.layers.3.self_attn.q_proj.weight"], [queries, hidden], "{fixture}");
        let strange = |name: &&&str| !name.starts_with("model.") && **name != "lm_head.weight";
        assert_eq!(shapes.keys().find(strange), None, "{fixture}");
        assert!(!shapes.keys().any(|name| name.contains("visual") || name.contains("language_model")), "{fixture}");
        let visual = model.notes.iter().any(|note| note.contains("model.visual."));
        assert_eq!(visual, fixture.contains("vl_layout"), "{fixture}: {:?}", model.notes);
    }
}

#[test]
fn small_tensors_keep_their_precision() {
    let model = Checkpoint::of("qwen3_5").import().unwrap();
    let native = |name: &str| model.tensors.iter().find(|t| t.name == name).unwrap().native;
    for (stem, expected) in [
        ("A_log", crate::NativeDtype::F32),
        ("norm.weight", crate::NativeDtype::F32),
        ("dt_bias", crate::NativeDtype::Bf16),
    ] {
        assert_eq!(native(&format!("model.layers.0.linear_attn.{stem}")), expected, "{stem}");
    }
}

#[test]
fn grouped_projections_have_every_row_in_its_place() {
    let model = Checkpoint::of("qwen3_next").import().unwrap();
    let prefix = "model.layers.2.linear_attn.";
    let hidden = 128;
    // Per key head: q 32, k 32, v of two value heads 64, z of two value heads 64.
    let grouped = stored("qwen3_next", &format!("{prefix}in_proj_qkvz.weight"));
    let (mut qkv, mut z) = (vec![0.0; 256 * hidden], vec![0.0; 128 * hidden]);
    for (row, values) in grouped.chunks_exact(hidden).enumerate() {
        let (group, inside) = (row / 192, row % 192);
        let (target, at) = match inside {
            0..32 => (&mut qkv, group * 32 + inside),
            32..64 => (&mut qkv, 64 + group * 32 + inside - 32),
            64..128 => (&mut qkv, 128 + group * 64 + inside - 64),
            _ => (&mut z, group * 64 + inside - 128),
        };
        target[at * hidden..(at + 1) * hidden].copy_from_slice(values);
    }
    assert_eq!(self::values(&model, &format!("{prefix}in_proj_qkv.weight")), qkv);
    assert_eq!(self::values(&model, &format!("{prefix}in_proj_z.weight")), z);
    // Per key head: b of two value heads, a of two value heads.
    let grouped = stored("qwen3_next", &format!("{prefix}in_proj_ba.weight"));
    let rows = |rows: [usize; 4]| rows.map(|r| &grouped[r * hidden..(r + 1) * hidden]).concat();
    assert_eq!(self::values(&model, &format!("{prefix}in_proj_b.weight")), rows([0, 1, 4, 5]));
    assert_eq!(self::values(&model, &format!("{prefix}in_proj_a.weight")), rows([2, 3, 6, 7]));
}

#[test]
fn fused_experts_are_the_same_as_single_ones() {
    let fixture = "qwen3_5_moe_vl_layout";
    let model = Checkpoint::of(fixture).import().unwrap();
    let source = "model.language_model.layers.1.mlp.experts";
    let gate_up = stored(fixture, &format!("{source}.gate_up_proj"));
    let down = stored(fixture, &format!("{source}.down_proj"));
    let (width, hidden) = (32, 64);
    for expert in 0..6 {
        let found = |name: &str| values(&model, &format!("model.layers.1.mlp.experts.{expert}.{name}_proj.weight"));
        let both = &gate_up[expert * 2 * width * hidden..(expert + 1) * 2 * width * hidden];
        assert_eq!(found("gate"), both[..width * hidden]);
        assert_eq!(found("up"), both[width * hidden..]);
        assert_eq!(found("down"), down[expert * hidden * width..(expert + 1) * hidden * width]);
    }
    // The other way round: experts of the MTP layer, stored one by one, fused.
    let before: Vec<_> = model.tensors.iter().map(|t| (t.name.clone(), (t.load)().unwrap())).collect();
    let copy = Checkpoint::of(fixture);
    copy.edit(|tensors| {
        let mut bytes = |names: &[&str]| -> Vec<u8> {
            let mut bytes = Vec::new();
            for expert in 0..6 {
                for name in names {
                    let name = format!("mtp.layers.0.mlp.experts.{expert}.{name}_proj.weight");
                    let at = tensors.iter().position(|t| t.name == name).unwrap();
                    bytes.extend(tensors.swap_remove(at).bytes);
                }
            }
            bytes
        };
        let (gate_up, down) = (bytes(&["gate", "up"]), bytes(&["down"]));
        for (name, shape, bytes) in [("gate_up", vec![6, 64, 64], gate_up), ("down", vec![6, 64, 32], down)] {
            let name = format!("mtp.layers.0.mlp.experts.{name}_proj");
            tensors.push(Stored { name, dtype: Dtype::BF16, shape, bytes });
        }
    });
    let fused = copy.import().unwrap();
    assert_eq!(fused.tensors.len(), before.len());
    for (name, expected) in before {
        assert_eq!(values(&fused, &name), expected, "{name}");
    }
}

#[test]
fn prediction_blocks_are_kept_whole() {
    for fixture in HYBRID {
        let model = Checkpoint::of(fixture).import().unwrap();
        let shapes = shapes(&model);
        let hidden = model.header.arch.hidden_size as u32;
        let count = shapes.keys().filter(|name| name.starts_with("model.mtp.")).count();
        if !WITH_MTP.contains(&fixture) {
            assert_eq!((count, model.header.extensions.as_slice()), (0, &[] as &[String]), "{fixture}");
            continue;
        }
        // Three norms, the projection, eight of the attention and its norms, the FFN.
        let ffn = model.header.arch.moe.as_ref().map_or(3, |moe| 1 + 3 * moe.num_experts + 4);
        assert_eq!(count, 4 + 8 + ffn, "{fixture}");
        for (ours, theirs) in [
            ("enorm.weight", "pre_fc_norm_embedding.weight"),
            ("hnorm.weight", "pre_fc_norm_hidden.weight"),
            ("norm.weight", "norm.weight"),
            ("eh_proj.weight", "fc.weight"),
            ("layers.0.self_attn.q_proj.weight", "layers.0.self_attn.q_proj.weight"),
        ] {
            let expected = stored(fixture, &format!("mtp.{theirs}"));
            assert_eq!(values(&model, &format!("model.mtp.{ours}")), expected, "{fixture} {ours}");
        }
        assert_eq!(shapes["model.mtp.eh_proj.weight"], [hidden, 2 * hidden], "{fixture}");
        assert_eq!(model.header.extensions, ["mtp_block"], "{fixture}");
    }
}

#[test]
fn prediction_blocks_are_there_or_not() {
    let without = Checkpoint::of("qwen3_next");
    without.edit(|tensors| tensors.retain(|t| !t.name.starts_with("mtp.")));
    let model = without.import().unwrap();
    assert_eq!(model.header.arch.mtp, None);
    assert!(model.header.extensions.is_empty());
    let part = Checkpoint::of("qwen3_next");
    part.edit(|tensors| tensors.retain(|t| t.name != "mtp.pre_fc_norm_hidden.weight"));
    assert_eq!(part.refusal(), "tensor `model.mtp.hnorm.weight` is missing");
    let more = Checkpoint::of("qwen3_next");
    more.edit(|tensors| tensors.push(Stored::new("mtp.layers.1.input_layernorm.weight", Dtype::F32, &[128])));
    assert!(more.refusal().contains("mtp.layers.1.input_layernorm.weight` is not known"), "{}", more.refusal());
}

#[test]
fn layers_by_interval_and_dense_layers() {
    let copy = Checkpoint::of("qwen3_5");
    let before = arch(&copy);
    for key in ["layer_types", "attention_bias", "hidden_act", "rms_norm_eps", "linear_conv_kernel_dim"] {
        copy.set(CONFIG, key, Value::Null);
    }
    assert_eq!(arch(&copy), before);
    // Two dense layers of four: the tensors that the checkpoint has for them are now of no use.
    for (key, value) in [("mlp_only_layers", json!([0, 2])), ("decoder_sparse_step", json!(2))] {
        let copy = Checkpoint::of("qwen3_next");
        copy.set(CONFIG, key, value);
        assert!(copy.refusal().contains("model.layers.0.mlp.experts.0"), "{key}: {}", copy.refusal());
        copy.edit(|tensors| {
            tensors.retain(|t| !["model.layers.0.mlp.", "model.layers.2.mlp."].iter().any(|p| t.name.starts_with(p)));
            for layer in [0, 2] {
                for (name, shape) in [("gate", [192, 128]), ("up", [192, 128]), ("down", [128, 192])] {
                    let name = format!("model.layers.{layer}.mlp.{name}_proj.weight");
                    tensors.push(Stored::new(&name, Dtype::BF16, &shape));
                }
            }
        });
        let model = copy.import().unwrap();
        let routers = model.tensors.iter().filter(|t| t.name.ends_with("mlp.gate.weight")).count();
        assert_eq!((routers, model.header.arch.intermediate_size), (3, 192), "{key}");
    }
}

#[test]
fn refusals() {
    let cases = [
        ("qwen3_5", "attn_output_gate", json!(false), "attn_output_gate"),
        ("qwen3_5", "mtp_use_dedicated_embeddings", json!(true), "mtp_use_dedicated_embeddings"),
        ("qwen3_5", "mtp_num_hidden_layers", json!(2), "mtp_num_hidden_layers"),
        ("qwen3_5", "linear_num_value_heads", json!(3), "linear_num_value_heads"),
        ("qwen3_5", "linear_num_key_heads", json!(0), "linear_num_key_heads"),
        ("qwen3_5", "linear_conv_kernel_dim", json!(1), "linear_conv_kernel_dim"),
        ("qwen3_5", "layer_types", json!(["full_attention"]), "layer_types"),
        ("qwen3_5", "layer_types", json!(["mamba", "mamba", "mamba", "full_attention"]), "mamba"),
        ("qwen3_5", "hidden_act", json!("relu"), "relu"),
        ("qwen3_next", "full_attention_interval", json!(0), "full_attention_interval"),
        ("qwen3_next", "num_experts", json!(-1), "num_experts"),
        ("qwen3_next", "num_experts", json!(1 << 17), "num_experts"),
        ("qwen3_next", "num_experts_per_tok", json!(9), "num_experts_per_tok"),
        ("qwen3_next", "num_experts_per_tok", Value::Null, "num_experts_per_tok"),
        ("qwen3_next", "decoder_sparse_step", json!(0), "decoder_sparse_step"),
        ("qwen3_next", "mlp_only_layers", json!("none"), "mlp_only_layers"),
        ("qwen3_5_moe", "norm_topk_prob", json!(false), "norm_topk_prob"),
        ("qwen3_5_moe", "moe_intermediate_size", json!(0), "moe_intermediate_size"),
    ];
    for (fixture, key, value, needle) in cases {
        let copy = Checkpoint::of(fixture);
        if needle == "full_attention_interval" {
            copy.set(CONFIG, "layer_types", Value::Null);
        }
        copy.set(CONFIG, key, value.clone());
        let message = copy.refusal();
        assert!(message.contains(needle), "{fixture} {key} = {value}: {message}");
    }
    for part in [0.0, 0.02, 0.3] {
        let copy = Checkpoint::of("qwen3_5");
        copy.set(CONFIG, "rope_parameters", json!({"rope_type": "default", "partial_rotary_factor": part}));
        assert!(copy.refusal().contains("partial_rotary_factor"), "{part}");
    }
    // Rows that do not make whole groups.
    let copy = Checkpoint::of("qwen3_next");
    copy.set(CONFIG, "linear_value_head_dim", json!(16));
    assert!(copy.refusal().contains("linear_attn.") && copy.refusal().contains("expected"), "{}", copy.refusal());
}
