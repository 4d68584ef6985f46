//! DeepSeek V3: latent attention, grouped experts, layers of multi-token prediction.

use cortiq_cmf::{Mla, RopeScaling};
use serde_json::json;

use super::*;

fn copy() -> Checkpoint {
    Checkpoint::of("deepseek_v3")
}

#[test]
fn header() {
    let model = copy().import().unwrap();
    let a = &model.header.arch;
    let mla =
        Mla { q_lora_rank: Some(64), kv_lora_rank: 32, qk_nope_head_dim: 32, qk_rope_head_dim: 16, v_head_dim: 32 };
    assert_eq!(a.mla, Some(mla));
    assert_eq!((a.num_attention_heads, a.num_kv_heads, a.head_dim), (4, 4, 48));
    assert!(a.rope_interleaved && a.mtp.is_none());
    assert_eq!(a.partial_rotary_factor, 1.0);
    let yarn = RopeScaling::Yarn {
        factor: 10.0,
        original_max_position_embeddings: 64,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
        attention_factor: None,
        mscale: Some(1.0),
        mscale_all_dim: Some(1.0),
    };
    assert_eq!(a.rope_scaling, Some(yarn));
    let moe = a.moe.as_ref().unwrap();
    assert_eq!((moe.num_experts, moe.top_k, moe.moe_intermediate_size), (8, 3, 32));
    assert!(moe.router_sigmoid && moe.norm_topk_prob);
    assert_eq!((moe.n_group, moe.topk_group), (Some(4), Some(2)));
    assert_eq!((moe.routed_scaling_factor, moe.norm_topk_eps), (Some(2.5), Some(1e-20)));
    assert_eq!(moe.shared_expert_intermediate_size, Some(32));
    let extensions = ["rope_scaling", "rope_interleaved", "mla", "router_groups", "plain_shared_expert"];
    assert_eq!(model.header.extensions, extensions);
    let bias = model.tensors.iter().find(|t| t.name == "model.layers.1.mlp.expert_bias").unwrap();
    assert_eq!((bias.native, bias.shape.as_slice()), (crate::NativeDtype::F32, [8].as_slice()));
    for name in ["model.layers.0.mlp.gate_proj.weight", "model.layers.2.mlp.shared_expert.down_proj.weight"] {
        assert!(model.tensors.iter().any(|t| t.name == name), "{name}");
    }
}

#[test]
fn queries_without_compression() {
    let copy = copy();
    copy.set(CONFIG, "q_lora_rank", Value::Null);
    assert!(copy.refusal().contains("self_attn.q_a_"), "{}", copy.refusal());
    copy.edit(|tensors| {
        tensors.retain(|t| !t.name.contains("q_a_layernorm") && !t.name.contains("q_a_proj"));
        for tensor in tensors.iter_mut().filter(|t| t.name.contains("q_b_proj")) {
            *tensor = Stored::new(&tensor.name.replace("q_b_proj", "q_proj"), Dtype::BF16, &[192, 128]);
        }
    });
    let model = copy.import().unwrap();
    assert_eq!(model.header.arch.mla.unwrap().q_lora_rank, None);
    assert!(model.tensors.iter().any(|t| t.name == "model.layers.2.self_attn.q_proj.weight"));
}

#[test]
fn selection_without_groups() {
    for (n_group, topk_group) in [(1, 1), (4, 4)] {
        let copy = copy();
        copy.set(CONFIG, "n_group", json!(n_group));
        copy.set(CONFIG, "topk_group", json!(topk_group));
        let header = copy.import().unwrap().header;
        let moe = header.arch.moe.unwrap();
        assert_eq!((moe.n_group, moe.topk_group), (None, None));
        assert!(!header.extensions.contains(&"router_groups".to_owned()));
    }
}

#[test]
fn prediction_layers_are_left_out_with_a_note() {
    let copy = copy();
    copy.edit(|tensors| {
        let names = ["enorm.weight", "eh_proj.weight", "shared_head.head.weight", "self_attn.o_proj.weight"];
        tensors.extend(names.map(|n| Stored::new(&format!("model.layers.3.{n}"), Dtype::BF16, &[128])));
    });
    let model = copy.import().unwrap();
    assert_eq!(model.header.arch.mtp, None);
    let note = model.notes.iter().find(|n| n.contains("`model.layers.3.")).unwrap();
    assert!(note.starts_with("left out 4 tensors") && note.contains("multi-token prediction"), "{note}");
    assert!(!model.tensors.iter().any(|t| t.name.starts_with("model.layers.3.")));
    // Only as many layers as the configuration says.
    copy.set(CONFIG, "num_nextn_predict_layers", json!(0));
    assert!(copy.refusal().contains("model.layers.3.") && copy.refusal().contains("is not known"));
}

#[test]
fn dense_layers() {
    for (key, value) in [("first_k_dense_replace", 2), ("moe_layer_freq", 2)] {
        let copy = copy();
        copy.set(CONFIG, key, json!(value));
        assert!(copy.refusal().contains("`model.layers.1.mlp."), "{key}: {}", copy.refusal());
    }
}

#[test]
fn refusals() {
    let cases = [
        ("attention_bias", json!(true), "attention_bias"),
        ("scoring_func", json!("softmax"), "softmax"),
        ("topk_method", json!("greedy"), "greedy"),
        ("rms_norm_eps", json!(1e-5), "rms_norm_eps"),
        ("qk_rope_head_dim", json!(15), "qk_rope_head_dim"),
        ("kv_lora_rank", json!(0), "kv_lora_rank"),
        ("n_group", json!(3), "n_group"),
        ("n_group", json!(8), "n_group"),
        ("topk_group", json!(5), "topk_group"),
        ("topk_group", json!(1), "topk_group"),
        ("n_routed_experts", json!(0), "n_routed_experts"),
        ("num_experts_per_tok", json!(9), "num_experts_per_tok"),
        ("moe_layer_freq", json!([0, 1, 1]), "moe_layer_freq"),
        ("routed_scaling_factor", json!(0), "routed_scaling_factor"),
        ("rope_parameters", json!({"rope_type": "llama3", "factor": 2}), "llama3"),
        ("quantization_config", json!({"quant_method": "fp8"}), "fp8"),
        ("n_shared_experts", json!(0), "shared_expert"),
    ];
    for (key, value, needle) in cases {
        let copy = copy();
        copy.set(CONFIG, key, value.clone());
        let message = copy.refusal();
        assert!(message.contains(needle), "{key} = {value}: {message}");
    }
}
