//! What the families make of their configurations.

use cortiq_cmf::{LayerType, RopeScaling};
use serde_json::json;

use super::*;

fn arch(copy: &Checkpoint) -> cortiq_cmf::ModelArch {
    copy.import().unwrap().header.arch
}

#[test]
fn llama_grouped_queries_and_untied_head() {
    let model = Checkpoint::of("llama_gqa").import().unwrap();
    let a = &model.header.arch;
    assert_eq!((a.hidden_size, a.intermediate_size, a.num_layers, a.vocab_size), (128, 256, 3, 1024));
    assert_eq!((a.num_attention_heads, a.num_kv_heads, a.head_dim), (4, 2, 32));
    assert_eq!(a.layer_types, [LayerType::FullAttention; 3]);
    assert_eq!((a.rms_norm_eps, a.rope_theta, a.max_position_embeddings), (1e-5, 10_000.0, 1024));
    assert!(!a.tie_word_embeddings && a.rope_scaling.is_none() && a.sliding_window.is_none());
    assert_eq!((a.arch_name.as_str(), a.hidden_act.as_str()), ("llama", "silu"));
    assert!(model.header.extensions.is_empty());
    let tokens = model.header.tokenizer_config.unwrap();
    assert_eq!((tokens.bos_token_id, tokens.eos_token_ids), (Some(1), vec![2]));
    assert!(tokens.chat_template.unwrap().contains("[INST]"));
}

#[test]
fn absent_keys_have_the_usual_defaults() {
    let copy = Checkpoint::of("llama_gqa");
    let before = arch(&copy);
    for key in ["head_dim", "attention_bias", "mlp_bias", "tie_word_embeddings", "hidden_act", "rope_parameters"] {
        copy.set(CONFIG, key, Value::Null);
    }
    assert_eq!(arch(&copy), before);
    let linear = Checkpoint::of("llama_linear_rope");
    let before = arch(&linear);
    assert_eq!(before.num_kv_heads, before.num_attention_heads);
    linear.set(CONFIG, "num_key_value_heads", Value::Null);
    assert_eq!(arch(&linear), before);
}

#[test]
fn nested_text_config_is_read() {
    let copy = Checkpoint::of("llama_gqa");
    let before = arch(&copy);
    let path = copy.path().join(CONFIG);
    let text: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let outer =
        json!({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "text_config": text, "hidden_size": 7});
    std::fs::write(path, outer.to_string()).unwrap();
    assert_eq!(arch(&copy), before);
}

#[test]
fn biases_need_the_extension() {
    let model = Checkpoint::of("llama_tied_bias").import().unwrap();
    assert_eq!(model.header.extensions, ["linear_bias"]);
    assert!(model.header.arch.tie_word_embeddings);
    assert!(model.tensors.iter().any(|t| t.name == "model.layers.2.mlp.down_proj.bias"));
    // Biases on q, k and v alone are known to every reader.
    assert!(Checkpoint::of("qwen2_bias").import().unwrap().header.extensions.is_empty());
}

#[test]
fn rope_scaling_is_carried_and_needs_the_extension() {
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        original_max_position_embeddings: 128,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
        attention_factor: None,
        mscale: None,
        mscale_all_dim: None,
    };
    let llama3 = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 64,
    };
    let cases = [
        ("qwen3_yarn", yarn, 1e6),
        ("llama3_rope", llama3, 5e5),
        ("llama_linear_rope", RopeScaling::Linear { factor: 4.0 }, 1e4),
    ];
    for (name, expected, theta) in cases {
        let header = Checkpoint::of(name).import().unwrap().header;
        assert_eq!(header.arch.rope_scaling, Some(expected), "{name}");
        assert_eq!(header.arch.rope_theta, theta, "{name}");
        assert_eq!(header.extensions, ["rope_scaling"], "{name}");
    }
}

#[test]
fn all_mistral_layers_slide() {
    let copy = Checkpoint::of("mistral_swa");
    let a = arch(&copy);
    assert_eq!((a.sliding_window, a.sliding_window_pattern, a.sliding_layers), (Some(32), None, None));
    copy.set(CONFIG, "sliding_window", Value::Null);
    assert_eq!(arch(&copy).sliding_window, None);
}

#[test]
fn qwen_layers_slide_from_max_window_layers_on() {
    for fixture in ["qwen2_bias", "qwen3"] {
        let window = |layers: Value, use_it: bool, first: u32| {
            let copy = Checkpoint::of(fixture);
            copy.set(CONFIG, "layer_types", layers);
            copy.set(CONFIG, "use_sliding_window", json!(use_it));
            copy.set(CONFIG, "sliding_window", json!(16));
            copy.set(CONFIG, "max_window_layers", json!(first));
            let header = copy.import().unwrap().header;
            assert_eq!(header.extensions.contains(&"sliding_layers".to_owned()), header.arch.sliding_layers.is_some());
            (header.arch.sliding_window, header.arch.sliding_layers)
        };
        let none = Value::Null;
        assert_eq!(window(none.clone(), false, 0), (None, None));
        assert_eq!(window(none.clone(), true, 3), (None, None));
        assert_eq!(window(none.clone(), true, 0), (Some(16), None));
        assert_eq!(window(none, true, 1), (Some(16), Some(vec![false, true, true])));
        let (full, slide) = ("full_attention", "sliding_attention");
        assert_eq!(window(json!([slide, full, slide]), true, 28), (Some(16), Some(vec![true, false, true])));
        assert_eq!(window(json!([full, full, full]), true, 0), (None, None));
        assert_eq!(window(json!([slide, full, slide]), false, 0), (None, None));
    }
}

#[test]
fn activations() {
    for (given, stored) in [("silu", "silu"), ("gelu_pytorch_tanh", "gelu_tanh"), ("gelu_tanh", "gelu_tanh")] {
        let copy = Checkpoint::of("qwen3");
        copy.set(CONFIG, "hidden_act", json!(given));
        assert_eq!(arch(&copy).hidden_act, stored);
    }
}

#[test]
fn generation_defaults_reach_the_header() {
    let copy = Checkpoint::of("qwen3");
    assert_eq!(copy.import().unwrap().header.generation, None);
    copy.set(generation::FILE, "temperature", json!(0.6));
    copy.set(generation::FILE, "top_k", json!(20));
    let header = copy.import().unwrap().header;
    let generation = header.generation.unwrap();
    assert_eq!((generation.temperature, generation.top_k, generation.top_p), (Some(0.6), Some(20), None));
    copy.set(generation::FILE, "eos_token_id", json!([722, 720]));
    assert_eq!(copy.import().unwrap().header.tokenizer_config.unwrap().eos_token_ids, [722, 720]);
    std::fs::remove_file(copy.path().join(generation::FILE)).unwrap();
    assert_eq!(copy.import().unwrap().header.tokenizer_config.unwrap().eos_token_ids, [722]);
}

#[test]
fn left_out_tensors_are_noted() {
    let copy = Checkpoint::of("qwen3");
    let before = copy.import().unwrap();
    assert!(before.notes.is_empty(), "{:?}", before.notes);
    copy.edit(|tensors| {
        for name in ["lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"] {
            tensors.push(Stored::new(name, Dtype::F32, &[768, 128]));
        }
        // The dtype of what is left out does not matter.
        tensors.push(Stored::new("model.visual.patch_embed.weight", Dtype::I8, &[3]));
        tensors.push(Stored::new("model.visual.blocks.0.weight", Dtype::F64, &[3]));
    });
    let after = copy.import().unwrap();
    let names = |m: &ImportedModel| m.tensors.iter().map(|t| t.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&after), names(&before));
    assert_eq!(after.notes.len(), 3, "{:?}", after.notes);
    for needle in ["`lm_head.weight`", "inv_freq", "left out 2 tensors (`model.visual"] {
        assert!(after.notes.iter().any(|n| n.contains(needle)), "{needle}: {:?}", after.notes);
    }
}

#[test]
fn checkpoints_of_the_bare_model_get_the_prefix() {
    let copy = Checkpoint::of("qwen3");
    let names = |m: ImportedModel| m.tensors.into_iter().map(|t| t.name).collect::<Vec<_>>();
    let before = names(copy.import().unwrap());
    copy.edit(|tensors| {
        for tensor in tensors {
            tensor.name = tensor.name.strip_prefix("model.").unwrap().to_owned();
        }
    });
    let mut after = names(copy.import().unwrap());
    after.sort();
    let mut before = before;
    before.sort();
    assert_eq!(after, before);
}
