//! Phi-3, OLMo 2 and SmolLM3.

use std::collections::BTreeMap;

use cortiq_cmf::RopeScaling;
use serde_json::json;

use super::*;

fn values(model: &ImportedModel, name: &str) -> Vec<f32> {
    let tensor = model.tensors.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("{name}"));
    (tensor.load)().unwrap()
}

#[test]
fn fused_projections_of_phi3_are_cut_by_rows() {
    let copy = Checkpoint::of("phi3");
    let theirs: BTreeMap<String, Vec<f32>> = safetensors::open(copy.path())
        .unwrap()
        .into_iter()
        .map(|t| (t.name.clone(), t.loader().unwrap()().unwrap()))
        .collect();
    let model = copy.import().unwrap();
    for layer in 0..3 {
        let stem = |name: &str| format!("model.layers.{layer}.{name}_proj.weight");
        for (fused, parts) in [
            ("self_attn.qkv", &["self_attn.q", "self_attn.k", "self_attn.v"][..]),
            ("mlp.gate_up", &["mlp.gate", "mlp.up"][..]),
        ] {
            let joined: Vec<f32> = parts.iter().flat_map(|part| values(&model, &stem(part))).collect();
            assert_eq!(joined, theirs[&stem(fused)], "{layer} {fused}");
        }
    }
    // 4 query heads of 32 come first, then 2 key heads.
    let q = values(&model, "model.layers.0.self_attn.q_proj.weight");
    assert_eq!((q.len(), model.header.arch.num_kv_heads), (128 * 128, 2));
    assert_eq!((model.header.arch.sliding_window, model.header.extensions.len()), (Some(40), 0));
}

#[test]
fn phi3_longrope_and_partial_rotation() {
    let copy = Checkpoint::of("phi3_longrope");
    let header = copy.import().unwrap().header;
    let Some(RopeScaling::LongRope { short_factor, long_factor, original_max_position_embeddings, attention_factor }) =
        header.arch.rope_scaling
    else {
        panic!("{:?}", header.arch.rope_scaling);
    };
    assert_eq!((short_factor.len(), short_factor[15], long_factor[15]), (16, 1.3, 7.75));
    assert_eq!((original_max_position_embeddings, attention_factor), (128, None));
    assert_eq!(header.extensions, ["rope_scaling"]);
    assert_eq!((header.arch.partial_rotary_factor, header.arch.sliding_window), (1.0, None));

    let copy = Checkpoint::of("phi3");
    copy.set(CONFIG, "rope_parameters", json!({"rope_type": "default", "partial_rotary_factor": 0.75}));
    assert_eq!(copy.import().unwrap().header.arch.partial_rotary_factor, 0.75);
    copy.set(CONFIG, "rope_parameters", Value::Null);
    copy.set(CONFIG, "partial_rotary_factor", json!(0.5));
    assert_eq!(copy.import().unwrap().header.arch.partial_rotary_factor, 0.5);
}

#[test]
fn norms_of_olmo2() {
    let copy = Checkpoint::of("olmo2");
    let model = copy.import().unwrap();
    assert_eq!(model.header.extensions, ["post_norm", "wide_qk_norm"]);
    let names: Vec<&str> = model.tensors.iter().map(|t| t.name.as_str()).collect();
    assert!(names.contains(&"model.layers.2.post_feedforward_layernorm.weight"));
    assert!(!names.iter().any(|name| name.contains("input_layernorm") || name.contains("pre_feedforward")));
    assert_eq!(values(&model, "model.layers.0.self_attn.k_norm.weight").len(), 64);
    assert_eq!(model.header.arch.rope_theta, 5e5);
}

#[test]
fn resting_layers_of_smollm3() {
    let copy = Checkpoint::of("smollm3");
    let header = copy.import().unwrap().header;
    assert_eq!(header.extensions, ["rope_layers"]);
    assert_eq!(header.arch.rope_layers, Some(vec![true, true, true, false]));
    assert_eq!((header.arch.rope_theta, header.arch.sliding_window), (2e6, None));
    let set = |key: &str, value: Value| {
        copy.set(CONFIG, key, value);
        copy.import().unwrap().header.arch
    };
    assert_eq!(set("no_rope_layers", json!([1, 1, 1, 1])).rope_layers, None);
    assert_eq!(set("no_rope_layers", json!([0, 1, 0, 1, 0])).rope_layers, Some(vec![false, true, false, true]));
    assert_eq!(set("no_rope_layers", Value::Null).rope_layers, Some(vec![true, true, true, false]));
    assert_eq!(set("no_rope_layer_interval", json!(2)).rope_layers, Some(vec![true, false, true, false]));
    // Sliding: `layer_types`, else the layers that do not rotate.
    set("use_sliding_window", json!(true));
    assert_eq!(set("sliding_window", json!(16)).sliding_window, None);
    assert_eq!(set("layer_types", Value::Null).sliding_layers, Some(vec![false, true, false, true]));
}

#[test]
fn refusals() {
    let long = |short: usize| json!({"rope_type": "longrope", "short_factor": vec![1.0; short], "long_factor": vec![2.0; short]});
    let cases = [
        ("phi3", "attention_bias", json!(true), "attention_bias"),
        ("phi3", "rope_parameters", json!({"rope_type": "linear", "factor": 2}), "linear"),
        ("phi3", "rope_parameters", json!({"partial_rotary_factor": 0.03}), "partial_rotary_factor"),
        ("phi3", "rope_parameters", json!({"partial_rotary_factor": 0.66}), "partial_rotary_factor"),
        ("phi3", "num_key_value_heads", json!(4), "qkv_proj.weight"),
        ("phi3", "intermediate_size", json!(160), "down_proj.weight"),
        ("phi3_longrope", "rope_parameters", long(15), "short_factor"),
        ("olmo2", "clip_qkv", json!(8), "clip_qkv"),
        ("olmo2", "rope_parameters", json!({"rope_type": "longrope"}), "longrope"),
        ("olmo2", "attention_bias", json!(true), "q_proj.bias"),
        ("smollm3", "no_rope_layers", json!([1, 1]), "no_rope_layers"),
        ("smollm3", "no_rope_layers", json!([1, 1, 1, 2]), "no_rope_layers"),
        ("smollm3", "no_rope_layer_interval", json!(0), "no_rope_layer_interval"),
        ("smollm3", "mlp_bias", json!(true), "gate_proj.bias"),
    ];
    for (fixture, key, value, needle) in cases {
        let copy = Checkpoint::of(fixture);
        if key == "no_rope_layer_interval" {
            copy.set(CONFIG, "no_rope_layers", Value::Null);
        }
        copy.set(CONFIG, key, value.clone());
        let message = copy.refusal();
        assert!(message.contains(needle), "{fixture} {key} = {value}: {message}");
    }
}
