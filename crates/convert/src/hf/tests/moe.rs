//! Mixtral, Qwen2-MoE and Qwen3-MoE.

use cortiq_cmf::Moe;
use serde_json::json;

use super::*;

fn names(model: &ImportedModel) -> Vec<&str> {
    model.tensors.iter().map(|t| t.name.as_str()).collect()
}

fn moe(num_experts: usize, width: usize, norm_topk_prob: bool, shared: Option<usize>) -> Option<Moe> {
    Some(Moe {
        num_experts,
        top_k: 2,
        moe_intermediate_size: width,
        norm_topk_prob,
        shared_expert_intermediate_size: shared,
        router_sigmoid: false,
        routed_scaling_factor: None,
        n_group: None,
        topk_group: None,
        norm_topk_eps: None,
    })
}

#[test]
fn headers() {
    for (fixture, expected) in [
        ("mixtral", moe(4, 96, true, None)),
        ("qwen2_moe", moe(8, 64, false, Some(128))),
        ("qwen3_moe", moe(8, 56, true, None)),
    ] {
        let model = Checkpoint::of(fixture).import().unwrap();
        assert_eq!(model.header.arch.moe, expected, "{fixture}");
        assert_eq!(model.header.arch.arch_name, fixture);
        assert!(model.header.extensions.is_empty(), "{fixture}: {:?}", model.header.extensions);
    }
}

#[test]
fn mixtral_projections_by_number() {
    let copy = Checkpoint::of("mixtral");
    let theirs = safetensors::open(copy.path()).unwrap();
    let model = copy.import().unwrap();
    for (ours, name) in [
        ("mlp.gate", "gate"),
        ("mlp.experts.3.gate_proj", "experts.3.w1"),
        ("mlp.experts.3.up_proj", "experts.3.w3"),
        ("mlp.experts.3.down_proj", "experts.3.w2"),
    ] {
        let ours = format!("model.layers.1.{ours}.weight");
        let theirs =
            theirs.iter().find(|t| t.name == format!("model.layers.1.block_sparse_moe.{name}.weight")).unwrap();
        let tensor = model.tensors.iter().find(|t| t.name == ours).unwrap();
        assert_eq!((tensor.load)().unwrap(), theirs.loader().unwrap()().unwrap(), "{ours}");
    }
}

#[test]
fn mixtral_window() {
    let copy = Checkpoint::of("mixtral");
    assert_eq!(copy.import().unwrap().header.arch.sliding_window, None);
    copy.set(CONFIG, "sliding_window", json!(16));
    let arch = copy.import().unwrap().header.arch;
    assert_eq!((arch.sliding_window, arch.sliding_layers), (Some(16), None));
}

#[test]
fn dense_layers_between_sparse_ones() {
    let model = Checkpoint::of("qwen2_moe").import().unwrap();
    let names = names(&model);
    for (layer, sparse) in [(0, true), (1, false), (2, true)] {
        let has = |stem: &str| names.contains(&format!("model.layers.{layer}.mlp.{stem}.weight").as_str());
        assert_eq!(has("experts.7.down_proj"), sparse, "{layer}");
        assert_eq!(has("shared_expert.gate_proj"), sparse, "{layer}");
        assert_eq!(has("shared_expert_gate"), sparse, "{layer}");
        assert_eq!(has("gate_proj"), !sparse, "{layer}");
    }
    // Which tensors are asked for follows from the step and the list.
    for (key, value, missing) in [
        ("mlp_only_layers", json!([]), "model.layers.1.mlp.gate.weight"),
        ("mlp_only_layers", json!([0, 1]), "model.layers.0.mlp.gate_proj.weight"),
        ("decoder_sparse_step", json!(3), "model.layers.0.mlp.gate_proj.weight"),
    ] {
        let copy = Checkpoint::of("qwen2_moe");
        copy.edit(|tensors| {
            tensors.retain(|t| !t.name.starts_with("model.layers.0.mlp.") || key != "decoder_sparse_step")
        });
        if key == "mlp_only_layers" && value == json!([0, 1]) {
            copy.edit(|tensors| tensors.retain(|t| !t.name.starts_with("model.layers.0.mlp.")));
        } else if key == "mlp_only_layers" {
            copy.edit(|tensors| tensors.retain(|t| !t.name.starts_with("model.layers.1.mlp.")));
        }
        copy.set(CONFIG, key, value.clone());
        assert_eq!(copy.refusal(), format!("tensor `{missing}` is missing"), "{key} = {value}");
    }
}

#[test]
fn the_number_of_experts_has_two_names() {
    for (fixture, present, other) in [
        ("mixtral", "num_local_experts", "num_experts"),
        ("qwen3_moe", "num_local_experts", "num_experts"),
        ("qwen2_moe", "num_experts", "num_local_experts"),
    ] {
        let copy = Checkpoint::of(fixture);
        let before = copy.import().unwrap().header.arch;
        let number = before.moe.as_ref().unwrap().num_experts;
        copy.set(CONFIG, present, Value::Null);
        copy.set(CONFIG, other, json!(number));
        assert_eq!(copy.import().unwrap().header.arch, before, "{fixture}");
    }
}

#[test]
fn windows_of_qwen_models() {
    let copy = Checkpoint::of("qwen3_moe");
    copy.set(CONFIG, "use_sliding_window", json!(true));
    copy.set(CONFIG, "sliding_window", json!(16));
    let arch = copy.import().unwrap().header.arch;
    assert_eq!((arch.sliding_window, arch.sliding_layers), (Some(16), None));

    let copy = Checkpoint::of("qwen2_moe");
    copy.set(CONFIG, "use_sliding_window", json!(true));
    copy.set(CONFIG, "sliding_window", json!(16));
    copy.set(CONFIG, "layer_types", json!(["sliding_attention", "full_attention", "full_attention"]));
    let arch = copy.import().unwrap().header.arch;
    assert_eq!((arch.sliding_window, arch.sliding_layers), (Some(16), Some(vec![true, false, false])));
    copy.set(CONFIG, "layer_types", Value::Null);
    assert!(copy.refusal().contains("`use_sliding_window` = `true`"), "{}", copy.refusal());
}

#[test]
fn a_shared_expert_without_a_gate_needs_the_extension() {
    let mut model = Checkpoint::of("qwen2_moe").import().unwrap();
    model.tensors.retain(|t| !t.name.ends_with("2.mlp.shared_expert_gate.weight"));
    model.declare_extensions();
    assert_eq!(model.header.extensions, ["plain_shared_expert"]);
}

#[test]
fn refusals() {
    let cases = [
        ("mixtral", "num_local_experts", json!(0), "num_local_experts"),
        ("mixtral", "num_local_experts", json!(1_000_000), "num_local_experts"),
        ("mixtral", "num_experts_per_tok", json!(5), "num_experts_per_tok"),
        ("mixtral", "rope_parameters", json!({"rope_type": "llama3", "factor": 2}), "llama3"),
        ("qwen2_moe", "decoder_sparse_step", json!(0), "decoder_sparse_step"),
        ("qwen2_moe", "mlp_only_layers", json!([-1]), "mlp_only_layers"),
        ("qwen2_moe", "shared_expert_intermediate_size", json!("wide"), "shared_expert_intermediate_size"),
        ("qwen2_moe", "qkv_bias", json!(false), "k_proj.bias` is not known"),
        ("qwen3_moe", "moe_intermediate_size", json!(0), "moe_intermediate_size"),
        ("qwen3_moe", "norm_topk_prob", json!(1), "norm_topk_prob"),
        ("qwen3_moe", "num_local_experts", json!(9), "model.layers.0.mlp.gate.weight"),
    ];
    for (fixture, key, value, needle) in cases {
        let copy = Checkpoint::of(fixture);
        copy.set(CONFIG, key, value.clone());
        let message = copy.refusal();
        assert!(message.contains(needle), "{fixture} {key} = {value}: {message}");
    }
}
