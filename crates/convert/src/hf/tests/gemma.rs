//! The four generations of Gemma. Variants of the first and the fourth beside their fixtures are built from the
//! published names, with random weights.

use std::collections::BTreeMap;
use std::sync::Arc;

use cortiq_cmf::{CmfFile, NormStyle, RopeScaling};
use cortiq_model::{MappedWeights, Program};
use cortiq_quant::Encoding;
use serde_json::json;

use super::*;
use crate::{ConvertOptions, NoProgress, convert};

const HIDDEN: usize = 64;
const VOCAB: usize = 1024;

/// A checkpoint with the tokenizer of Gemma 2.
fn checkpoint(config: &Value, names: Vec<(String, Vec<usize>)>) -> Checkpoint {
    let mut state = 7u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (f64::from(state) / f64::from(u32::MAX) - 0.5) as f32
    };
    let stored = |(name, shape): (String, Vec<usize>)| {
        let bytes = (0..shape.iter().product()).flat_map(|_| random().to_le_bytes()).collect();
        Stored { name, dtype: Dtype::F32, shape, bytes }
    };
    let tensors: Vec<Stored> = names.into_iter().map(stored).collect();
    let copy = Checkpoint::of("gemma2");
    std::fs::write(copy.path().join(CONFIG), config.to_string()).unwrap();
    copy.edit(|stored| *stored = tensors);
    copy
}

fn gemma1() -> Checkpoint {
    let config = json!({
        "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "attention_bias": false, "bos_token_id": 2,
        "eos_token_id": 1, "head_dim": 32, "hidden_act": "gelu", "hidden_size": HIDDEN, "intermediate_size": 96,
        "max_position_embeddings": 1024, "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 1,
        "rms_norm_eps": 1e-6, "rope_scaling": null, "rope_theta": 1e4, "vocab_size": VOCAB,
    });
    let mut names = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..2 {
        for (name, shape) in [
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("self_attn.q_proj", vec![128, HIDDEN]),
            ("self_attn.k_proj", vec![32, HIDDEN]),
            ("self_attn.v_proj", vec![32, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, 128]),
            ("mlp.gate_proj", vec![96, HIDDEN]),
            ("mlp.up_proj", vec![96, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, 96]),
        ] {
            names.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    checkpoint(&config, names)
}

/// The multimodal layout: layers 2 and 5 of 6 are global. `k_eq_v`: those have no `v_proj`.
fn gemma4(k_eq_v: bool) -> Checkpoint {
    let (full, slide) = ("full_attention", "sliding_attention");
    let config = json!({
        "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "tie_word_embeddings": true,
        "eos_token_id": [1], "vision_config": {"hidden_size": 32, "head_dim": 8}, "audio_config": null,
        "text_config": {
            "attention_bias": false, "attention_k_eq_v": k_eq_v, "bos_token_id": 2, "enable_moe_block": false,
            "final_logit_softcapping": 30.0, "global_head_dim": 32, "head_dim": 16,
            "hidden_activation": "gelu_pytorch_tanh", "hidden_size": HIDDEN, "hidden_size_per_layer_input": 0,
            "intermediate_size": 96, "layer_types": [slide, slide, full, slide, slide, full],
            "max_position_embeddings": 1024, "model_type": "gemma4_text", "num_attention_heads": 4,
            "num_experts": null, "num_global_key_value_heads": 1, "num_hidden_layers": 6, "num_key_value_heads": 2,
            "num_kv_shared_layers": 0, "rms_norm_eps": 1e-6, "sliding_window": 8, "tie_word_embeddings": true,
            "rope_parameters": {
                full: {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"},
                slide: {"rope_theta": 1e4, "rope_type": "default"},
            },
            "use_bidirectional_attention": "vision", "vocab_size": VOCAB,
        },
    });
    let mut names = vec![
        ("model.language_model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.language_model.norm.weight".to_owned(), vec![HIDDEN]),
        ("model.vision_tower.patch_embedder.input_proj.weight".to_owned(), vec![32, 48]),
        ("model.embed_vision.embedding_projection.weight".to_owned(), vec![HIDDEN, 32]),
    ];
    for layer in 0..6 {
        let global = layer % 3 == 2;
        let head_dim = if global { 32 } else { 16 };
        let kv_heads = if global && k_eq_v { 1 } else { 2 };
        let mut add = |name: &str, shape: &[usize]| {
            names.push((format!("model.language_model.layers.{layer}.{name}"), shape.to_vec()));
        };
        add("self_attn.q_proj.weight", &[4 * head_dim, HIDDEN]);
        add("self_attn.k_proj.weight", &[kv_heads * head_dim, HIDDEN]);
        if !(global && k_eq_v) {
            add("self_attn.v_proj.weight", &[kv_heads * head_dim, HIDDEN]);
        }
        add("self_attn.o_proj.weight", &[HIDDEN, 4 * head_dim]);
        add("self_attn.q_norm.weight", &[head_dim]);
        add("self_attn.k_norm.weight", &[head_dim]);
        for norm in ["input", "post_attention", "pre_feedforward", "post_feedforward"] {
            add(&format!("{norm}_layernorm.weight"), &[HIDDEN]);
        }
        for (name, shape) in [("gate", [96, HIDDEN]), ("up", [96, HIDDEN]), ("down", [HIDDEN, 96])] {
            add(&format!("mlp.{name}_proj.weight"), &shape);
        }
        add("layer_scalar", &[1]);
    }
    checkpoint(&config, names)
}

/// Sets a key of `text_config`.
fn set_text(copy: &Checkpoint, key: &str, value: Value) {
    let mut config: Value = serde_json::from_slice(&std::fs::read(copy.path().join(CONFIG)).unwrap()).unwrap();
    config["text_config"][key] = value;
    std::fs::write(copy.path().join(CONFIG), config.to_string()).unwrap();
}

fn shapes(model: &ImportedModel) -> BTreeMap<&str, &[u32]> {
    model.tensors.iter().map(|t| (t.name.as_str(), t.shape.as_slice())).collect()
}

#[test]
fn first_generation() {
    let copy = gemma1();
    let model = copy.import().unwrap();
    let a = &model.header.arch;
    assert_eq!((a.norm_style, a.embed_multiplier, a.hidden_act.as_str()), (NormStyle::Gemma, 8.0, "gelu_tanh"));
    assert_eq!((a.head_dim, a.num_kv_heads, a.tie_word_embeddings, a.query_pre_attn_scalar), (32, 1, true, None));
    assert!(model.header.extensions.is_empty() && model.notes.is_empty());
    let before = a.clone();
    for (key, value) in [
        ("hidden_activation", json!("gelu_pytorch_tanh")),
        ("hidden_act", json!("gelu_pytorch_tanh")),
        ("hidden_activation", Value::Null),
        ("hidden_act", Value::Null),
        ("rope_parameters", json!({"rope_type": "default", "rope_theta": 1e4})),
    ] {
        copy.set(CONFIG, key, value);
        assert_eq!(copy.import().unwrap().header.arch, before, "{key}");
    }
    copy.set(CONFIG, "hidden_activation", json!("gelu"));
    assert!(copy.refusal().contains("`hidden_activation` = `gelu`"));
}

#[test]
fn second_generation() {
    let copy = Checkpoint::of("gemma2");
    let model = copy.import().unwrap();
    let a = &model.header.arch;
    assert_eq!((a.norm_style, a.embed_multiplier), (NormStyle::Gemma, 128f32.sqrt()));
    assert_eq!((a.attn_logit_softcapping, a.final_logit_softcapping), (Some(8.0), Some(10.0)));
    assert_eq!((a.query_pre_attn_scalar, a.sliding_window), (Some(48.0), Some(32)));
    assert_eq!((a.sliding_layers.as_deref(), a.sliding_window_pattern), (Some(&[true, false, true, false][..]), None));
    assert_eq!(model.header.extensions, ["sliding_layers", "attn_softcap"]);
    assert!(shapes(&model).contains_key("model.layers.3.pre_feedforward_layernorm.weight"));

    copy.set(CONFIG, "layer_types", json!(["full_attention", "full_attention", "full_attention", "sliding_attention"]));
    assert_eq!(copy.import().unwrap().header.arch.sliding_layers, Some(vec![false, false, false, true]));
    // Null is "none", absent is the default.
    copy.set(CONFIG, "attn_logit_softcapping", Value::Null);
    copy.set(CONFIG, "final_logit_softcapping", Value::Null);
    copy.set(CONFIG, "sliding_window", Value::Null);
    let header = copy.import().unwrap().header;
    let a = header.arch;
    assert_eq!((a.attn_logit_softcapping, a.final_logit_softcapping, a.sliding_window), (None, None, None));
    assert!(header.extensions.is_empty(), "{:?}", header.extensions);
    let path = copy.path().join(CONFIG);
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for key in ["attn_logit_softcapping", "final_logit_softcapping", "sliding_window", "query_pre_attn_scalar"] {
        config.as_object_mut().unwrap().remove(key);
    }
    std::fs::write(path, config.to_string()).unwrap();
    let a = copy.import().unwrap().header.arch;
    assert_eq!((a.attn_logit_softcapping, a.final_logit_softcapping), (Some(50.0), Some(30.0)));
    assert_eq!((a.query_pre_attn_scalar, a.sliding_window), (Some(256.0), Some(4096)));
}

#[test]
fn third_generation() {
    for (fixture, window, scalar) in [("gemma3_text", 32, 40.0), ("gemma3_vl_layout", 24, 32.0)] {
        let copy = Checkpoint::of(fixture);
        let model = copy.import().unwrap();
        let a = &model.header.arch;
        assert_eq!((a.rope_theta, a.rope_local_base_freq), (1e6, Some(1e4)), "{fixture}");
        assert_eq!(a.rope_scaling, Some(RopeScaling::Linear { factor: 8.0 }), "{fixture}");
        assert_eq!((a.sliding_window, a.sliding_window_pattern), (Some(window), Some(6)), "{fixture}");
        assert_eq!((&a.sliding_layers, a.query_pre_attn_scalar), (&None, Some(scalar)), "{fixture}");
        assert_eq!((a.norm_style, a.embed_multiplier), (NormStyle::Gemma, 8.0), "{fixture}");
        assert_eq!(model.header.extensions, ["rope_scaling"], "{fixture}");
        let shapes = shapes(&model);
        assert_eq!(shapes["model.layers.5.self_attn.q_norm.weight"], [a.head_dim as u32], "{fixture}");
        assert!(shapes.keys().all(|name| name.starts_with("model.") && !name.contains("language_model")));
        assert_eq!(model.notes.len(), usize::from(fixture == "gemma3_vl_layout"), "{:?}", model.notes);
    }
    let note = &Checkpoint::of("gemma3_vl_layout").import().unwrap().notes[0];
    assert!(note.contains("vision tower"), "{note}");
}

#[test]
fn newer_multimodal_names_of_the_third_generation() {
    let copy = Checkpoint::of("gemma3_vl_layout");
    let before = copy.import().unwrap();
    copy.edit(|tensors| {
        for tensor in tensors {
            tensor.name = match tensor.name.strip_prefix("language_model.model.") {
                Some(rest) => format!("model.language_model.{rest}"),
                None => format!("model.{}", tensor.name),
            };
        }
    });
    let after = copy.import().unwrap();
    assert_eq!(shapes(&before), shapes(&after));
    assert_eq!((before.header, after.notes.len()), (after.header, 1));
}

#[test]
fn sparse_multimodal_configurations_have_the_defaults_of_the_class() {
    let copy = Checkpoint::of("gemma3_vl_layout");
    let text = json!({"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34, "sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}});
    copy.set(CONFIG, "text_config", text);
    let file = JsonFile::read(copy.path(), CONFIG).unwrap().unwrap();
    let family = family::find(&file.object(), &file.text().unwrap()).unwrap();
    let a = (family.read)(&file.text().unwrap()).unwrap().arch;
    assert_eq!((a.vocab_size, a.num_attention_heads, a.num_kv_heads, a.head_dim), (262_208, 8, 4, 256));
    assert_eq!((a.max_position_embeddings, a.rope_theta, a.rope_local_base_freq), (131_072, 1e6, Some(1e4)));
    assert_eq!((a.sliding_window, a.sliding_window_pattern), (Some(1024), Some(6)));
    assert_eq!((a.query_pre_attn_scalar, a.tie_word_embeddings), (Some(256.0), true));
    assert_eq!(a.hidden_act, "gelu_tanh");
}

#[test]
fn irregular_layers_are_listed() {
    let copy = Checkpoint::of("gemma3_text");
    let (full, slide) = ("full_attention", "sliding_attention");
    let arch = |layers: [&str; 7]| {
        copy.set(CONFIG, "layer_types", json!(layers));
        copy.import().unwrap().header.arch
    };
    let a = arch([slide, full, slide, full, slide, full, slide]);
    assert_eq!((a.sliding_window_pattern, a.sliding_layers), (Some(2), None));
    let a = arch([slide, full, slide, slide, slide, full, slide]);
    assert_eq!(a.sliding_window_pattern, None);
    assert_eq!(a.sliding_layers, Some(vec![true, false, true, true, true, false, true]));
}

#[test]
fn fourth_generation() {
    for k_eq_v in [true, false] {
        let copy = gemma4(k_eq_v);
        let model = copy.import().unwrap();
        let a = &model.header.arch;
        assert_eq!((a.norm_style, a.embed_multiplier, a.attn_v_norm), (NormStyle::Qwen, 8.0, true));
        assert_eq!((a.head_dim, a.num_kv_heads, a.global_head_dim), (16, 2, Some(32)));
        assert_eq!(a.num_global_kv_heads, k_eq_v.then_some(1));
        assert_eq!((a.rope_theta, a.rope_local_base_freq), (1e6, Some(1e4)));
        assert_eq!((a.partial_rotary_factor, a.global_partial_rotary_factor), (1.0, Some(0.25)));
        assert_eq!((a.query_pre_attn_scalar, a.final_logit_softcapping), (Some(1.0), Some(30.0)));
        assert_eq!((a.sliding_window, a.sliding_window_pattern), (Some(8), Some(3)));
        assert!(model.header.extensions.is_empty(), "{:?}", model.header.extensions);
        assert_eq!(model.notes.len(), 1, "{:?}", model.notes);
        let shapes = shapes(&model);
        let rows = |name: &str| shapes[format!("model.layers.{name}_proj.weight").as_str()][0];
        let global = if k_eq_v { 32 } else { 64 };
        assert_eq!((rows("2.self_attn.q"), rows("2.self_attn.k"), rows("2.self_attn.v")), (128, global, global));
        assert_eq!((rows("3.self_attn.q"), rows("3.self_attn.k"), rows("3.self_attn.v")), (64, 32, 32));
        assert_eq!(shapes["model.layers.5.layer_scalar"], [1]);

        let values = |name: &str| {
            let name = format!("model.layers.{name}_proj.weight");
            (model.tensors.iter().find(|t| t.name == name).unwrap().load)().unwrap()
        };
        assert_eq!(values("2.self_attn.k") == values("2.self_attn.v"), k_eq_v);
        assert_ne!(values("3.self_attn.k"), values("3.self_attn.v"));
    }
}

#[test]
fn the_last_layer_of_the_fourth_generation_is_global() {
    let copy = gemma4(true);
    let before = copy.import().unwrap().header.arch;
    let (full, slide) = ("full_attention", "sliding_attention");
    set_text(&copy, "layer_types", json!([slide, slide, full, slide, slide, slide]));
    assert_eq!(copy.import().unwrap().header.arch, before);
}

/// `per_layer_config` with the same overrides for some layers.
fn global_layers(layers: &[usize], overrides: &Value) -> Value {
    layers.iter().map(|layer| (layer.to_string(), overrides.clone())).collect::<serde_json::Map<_, _>>().into()
}

/// Transformers 5.24 and later write the geometry of the global layers layer by layer.
#[test]
fn the_geometry_of_the_fourth_generation_may_be_listed_by_layer() {
    let one_head = json!({"head_dim": 32, "num_key_value_heads": 1});
    let mut all_layers = global_layers(&[0, 1, 3, 4], &json!({"head_dim": 16, "num_key_value_heads": 2}));
    all_layers["2"] = one_head.clone();
    all_layers["5"] = one_head.clone();
    for (k_eq_v, listed) in [
        (true, global_layers(&[2, 5], &one_head)),
        (true, json!({"02": one_head, "05": one_head})),
        (true, all_layers),
        (false, global_layers(&[2, 5], &json!({"head_dim": 32}))),
    ] {
        let copy = gemma4(k_eq_v);
        let before = copy.import().unwrap().header.arch;
        // Beside the list these do not count.
        set_text(&copy, "global_head_dim", json!(64));
        set_text(&copy, "num_global_key_value_heads", json!(4));
        set_text(&copy, "per_layer_config", listed.clone());
        assert_eq!(copy.import().unwrap().header.arch, before, "{listed}");
    }
    let copy = gemma4(false);
    set_text(&copy, "per_layer_config", global_layers(&[2, 5], &one_head));
    assert!(copy.refusal().contains("`per_layer_config` = `num_key_value_heads 1`"), "{}", copy.refusal());
    // Nothing listed: all layers are alike, which these tensors are not.
    for nothing in [json!({}), Value::Null] {
        set_text(&copy, "per_layer_config", nothing);
        assert!(copy.refusal().contains("has shape [32], expected [16]"), "{}", copy.refusal());
    }
}

#[test]
fn built_checkpoints_run() {
    for copy in [gemma1(), gemma4(true), gemma4(false)] {
        for quant in [Encoding::F32, Encoding::Q8_2f] {
            let output = copy.path().join("m.cmf");
            let source = HfSource::local(copy.path()).unwrap();
            convert(&source, &output, &ConvertOptions::new(quant).overwrite(true), &NoProgress).unwrap();
            let file = Arc::new(CmfFile::open(&output).unwrap());
            let weights = MappedWeights::new(Arc::clone(&file), None);
            if let Err(error) = Program::from_weights(file.header(), &weights) {
                panic!("{}: {error}", file.header().arch.arch_name);
            }
        }
    }
}

#[test]
fn refusals() {
    let entry =
        |partial: f64, kind: &str| json!({"rope_type": kind, "rope_theta": 1e4, "partial_rotary_factor": partial});
    let plain = entry(1.0, "default");
    let cases = [
        ("gemma2", "use_bidirectional_attention", json!(true), "use_bidirectional_attention"),
        ("gemma2", "attn_logit_softcapping", json!(0), "attn_logit_softcapping"),
        ("gemma2", "query_pre_attn_scalar", json!(-1), "query_pre_attn_scalar"),
        ("gemma2", "hidden_activation", json!("relu"), "`hidden_activation` = `relu`"),
        ("gemma2", "sliding_window", json!(0), "sliding_window"),
        ("gemma3_text", "use_bidirectional_attention", json!(true), "use_bidirectional_attention"),
        ("gemma3_text", "rope_parameters", json!({"full_attention": plain}), "rope_parameters.sliding_attention"),
        (
            "gemma3_text",
            "rope_parameters",
            json!({"full_attention": plain, "sliding_attention": {"rope_type": "linear", "factor": 2}}),
            "rope_parameters.sliding_attention.rope_type",
        ),
        (
            "gemma3_text",
            "rope_parameters",
            json!({"full_attention": {"rope_type": "yarn", "factor": 2}, "sliding_attention": plain}),
            "rope_parameters.full_attention.rope_type",
        ),
        (
            "gemma3_text",
            "rope_parameters",
            json!({"full_attention": entry(0.5, "default"), "sliding_attention": plain}),
            "rope_parameters.full_attention.partial_rotary_factor",
        ),
    ];
    for (fixture, key, value, needle) in cases {
        let copy = Checkpoint::of(fixture);
        copy.set(CONFIG, key, value.clone());
        let message = copy.refusal();
        assert!(message.contains(needle), "{fixture} {key} = {value}: {message}");
    }
    let rope = |full: Value, sliding: &Value| json!({"full_attention": full, "sliding_attention": sliding});
    let cases = [
        ("enable_moe_block", json!(true), "enable_moe_block"),
        ("hidden_size_per_layer_input", json!(256), "hidden_size_per_layer_input"),
        ("num_kv_shared_layers", json!(2), "num_kv_shared_layers"),
        ("per_layer_config", json!({"5": {"head_dim": 32}}), "`per_layer_config` = `2`"),
        ("per_layer_config", global_layers(&[0, 2, 5], &json!({"head_dim": 32})), "`per_layer_config` = `0`"),
        ("per_layer_config", global_layers(&[2, 5, 6], &json!({"head_dim": 32})), "`per_layer_config.6`"),
        ("per_layer_config", json!({"global": {"head_dim": 32}}), "`per_layer_config.global`"),
        ("per_layer_config", json!({"5": 32}), "`per_layer_config.5`"),
        ("per_layer_config", global_layers(&[2, 5], &json!({"head_dim": 31})), "per_layer_config.2.head_dim"),
        (
            "per_layer_config",
            global_layers(&[2, 5], &json!({"head_dim": 32, "num_key_value_heads": 3})),
            "per_layer_config.2.num_key_value_heads",
        ),
        ("per_layer_config", global_layers(&[2, 5], &json!({"rms_norm_eps": 1e-5})), "per_layer_config.2.rms_norm_eps"),
        ("use_bidirectional_attention", json!("all"), "use_bidirectional_attention"),
        ("global_head_dim", json!(31), "global_head_dim"),
        ("num_global_key_value_heads", json!(3), "num_global_key_value_heads"),
        ("rope_parameters", rope(plain.clone(), &entry(0.5, "default")), "sliding_attention.partial_rotary_factor"),
        ("rope_parameters", rope(entry(0.25, "default"), &plain), "full_attention.partial_rotary_factor"),
        (
            "rope_parameters",
            rope(json!({"rope_type": "proportional", "factor": 2.0}), &plain),
            "rope_parameters.full_attention.factor",
        ),
    ];
    for (key, value, needle) in cases {
        let copy = gemma4(true);
        set_text(&copy, key, value.clone());
        let message = copy.refusal();
        assert!(message.contains(needle), "{key} = {value}: {message}");
    }
    // The class's default: embeddings per layer.
    let copy = gemma4(true);
    let mut config: Value = serde_json::from_slice(&std::fs::read(copy.path().join(CONFIG)).unwrap()).unwrap();
    config["text_config"].as_object_mut().unwrap().remove("hidden_size_per_layer_input");
    std::fs::write(copy.path().join(CONFIG), config.to_string()).unwrap();
    assert!(copy.refusal().contains("hidden_size_per_layer_input"));
}
