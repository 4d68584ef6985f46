//! Everything that is refused is named.

use cortiq_quant::Encoding;
use serde_json::json;

use super::*;
use crate::{ConvertOptions, NoProgress, convert};

#[test]
fn other_families_by_name() {
    let copy = Checkpoint::of("qwen3");
    copy.set(CONFIG, "model_type", json!("rwkv"));
    copy.set(CONFIG, "architectures", json!(["RwkvForCausalLM"]));
    let source = HfSource::local(copy.path()).unwrap();
    let out = tempfile::tempdir().unwrap();
    let options = ConvertOptions::new(Encoding::Q8Row);
    let error = convert(&source, &out.path().join("m.cmf"), &options, &NoProgress).unwrap_err();
    assert_eq!(error.to_string(), "family `rwkv` is not supported yet");
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0);
}

#[test]
fn model_type_and_architecture_must_agree() {
    let copy = Checkpoint::of("qwen3");
    copy.set(CONFIG, "model_type", Value::Null);
    assert!(copy.import().is_ok(), "the architecture alone is enough");
    copy.set(CONFIG, "architectures", json!(["Qwen3ForSequenceClassification"]));
    assert!(copy.refusal().contains("`Qwen3ForSequenceClassification`"));
    copy.set(CONFIG, "model_type", json!("qwen3"));
    assert!(copy.refusal().contains("`Qwen3ForSequenceClassification`"));
    copy.set(CONFIG, "architectures", Value::Null);
    assert!(copy.import().is_ok(), "the model type alone is enough");
    copy.set(CONFIG, "model_type", Value::Null);
    assert!(copy.refusal().contains("`model_type`"));
}

#[test]
fn configuration_values() {
    let cases = [
        ("hidden_act", json!("relu"), "relu"),
        ("hidden_act", json!("gelu"), "gelu"),
        ("hidden_size", json!(0), "hidden_size"),
        ("hidden_size", json!("big"), "hidden_size"),
        ("hidden_size", Value::Null, "hidden_size"),
        ("intermediate_size", json!(-1), "intermediate_size"),
        ("num_hidden_layers", json!(1_000_000), "num_hidden_layers"),
        ("num_attention_heads", json!(0), "num_attention_heads"),
        ("num_key_value_heads", json!(3), "num_key_value_heads"),
        ("num_key_value_heads", json!(8), "num_key_value_heads"),
        ("head_dim", json!(33), "head_dim"),
        ("vocab_size", json!(1e18), "vocab_size"),
        ("max_position_embeddings", Value::Null, "max_position_embeddings"),
        ("rms_norm_eps", json!(-1e-6), "rms_norm_eps"),
        ("rms_norm_eps", json!("small"), "rms_norm_eps"),
        ("tie_word_embeddings", json!("yes"), "tie_word_embeddings"),
        ("attention_bias", json!(3), "attention_bias"),
        ("rope_parameters", json!({"rope_type": "dynamic", "factor": 2}), "dynamic"),
        ("rope_parameters", json!({"rope_type": "longrope"}), "longrope"),
        ("rope_parameters", json!({"rope_type": "llama3", "factor": 2}), "llama3"),
        ("quantization_config", json!({"quant_method": "gptq"}), "gptq"),
        ("eos_token_id", json!(-3), "eos_token_id"),
        ("layer_types", json!(["full_attention"]), "layer_types"),
        ("layer_types", json!(["linear_attention", "full_attention", "full_attention"]), "linear_attention"),
        ("sliding_window", json!(0), "sliding_window"),
        ("max_window_layers", json!(-1), "max_window_layers"),
        ("architectures", json!("Qwen3ForCausalLM"), "architectures"),
        ("text_config", json!([]), "text_config"),
    ];
    for (key, value, needle) in cases {
        let copy = Checkpoint::of("qwen3");
        copy.set(generation::FILE, "eos_token_id", Value::Null);
        if ["layer_types", "max_window_layers", "sliding_window"].contains(&key) {
            copy.set(CONFIG, "use_sliding_window", json!(true));
            copy.set(CONFIG, "sliding_window", json!(16));
            copy.set(CONFIG, "layer_types", Value::Null);
        }
        copy.set(CONFIG, key, value.clone());
        let message = copy.refusal();
        assert!(message.contains(needle), "{key} = {value}: {message}");
    }
}

#[test]
fn tensors() {
    let norm = "model.layers.1.input_layernorm.weight";
    type Change = Box<dyn FnOnce(&mut Vec<Stored>)>;
    let find = |tensors: &mut Vec<Stored>, name: &str| tensors.iter().position(|t| t.name == name).unwrap();
    let cases: [(Change, String); 6] = [
        (Box::new(move |t| t.retain(|t| t.name != norm)), format!("tensor `{norm}` is missing")),
        (
            Box::new(|t| t.push(Stored::new("model.layers.0.self_attn.sinks", Dtype::F32, &[4]))),
            "tensor `model.layers.0.self_attn.sinks` is not known in family `qwen3`".to_owned(),
        ),
        (
            Box::new(|t| t.push(Stored::new("model.layers.3.input_layernorm.weight", Dtype::F32, &[128]))),
            "tensor `model.layers.3.input_layernorm.weight` is not known in family `qwen3`".to_owned(),
        ),
        (
            Box::new(move |t| {
                let i = find(t, norm);
                t[i] = Stored::new(norm, Dtype::F32, &[64, 2]);
            }),
            format!("tensor `{norm}` has shape [64, 2], expected [128]"),
        ),
        (
            Box::new(move |t| {
                let i = find(t, norm);
                t[i] = Stored::new(norm, Dtype::F64, &[128]);
            }),
            format!("tensor `{norm}` has dtype F64, which is not supported (F32, F16 and BF16 are)"),
        ),
        (
            Box::new(|t| t.push(Stored::new("norm.weight", Dtype::F32, &[128]))),
            "tensor `model.norm.weight` occurs twice in the checkpoint".to_owned(),
        ),
    ];
    for (change, expected) in cases {
        let copy = Checkpoint::of("qwen3");
        copy.edit(change);
        assert_eq!(copy.refusal(), expected);
    }
    let untied = Checkpoint::of("qwen3");
    untied.set(CONFIG, "tie_word_embeddings", json!(false));
    assert_eq!(untied.refusal(), "tensor `lm_head.weight` is missing");
}

#[test]
fn files() {
    let weights = super::super::safetensors::SINGLE;
    for (file, needle) in [(CONFIG, CONFIG), (tokenizer::TOKENIZER, tokenizer::TOKENIZER), (weights, weights)] {
        let copy = Checkpoint::of("qwen3");
        std::fs::remove_file(copy.path().join(file)).unwrap();
        assert!(copy.refusal().starts_with(&format!("{needle} is missing; ")), "{}", copy.refusal());
        std::fs::write(copy.path().join(file), "[").unwrap();
        assert!(copy.refusal().contains(needle), "{}", copy.refusal());
    }
    for file in [generation::FILE, tokenizer::TOKENIZER_CONFIG] {
        let copy = Checkpoint::of("qwen3");
        std::fs::write(copy.path().join(file), "[]").unwrap();
        assert!(copy.refusal().contains(file), "{}", copy.refusal());
    }
}

#[test]
fn sources() {
    let cache = tempfile::tempdir().unwrap();
    let mut hub = HubOptions::new(cache.path());
    hub.offline = true;
    let message = |source: &str| HfSource::open(source, &hub, &NoProgress).unwrap_err().to_string();
    assert!(message("no-such-thing").contains("`no-such-thing`"));
    assert!(message("../no/such").contains("`../no/such`"));
    assert!(message("owner/name").contains("config.json of `owner/name@main` is not in the cache"));
    let file = fixtures().join("qwen3").join(CONFIG);
    assert!(message(file.to_str().unwrap()).contains("config.json"));
    // A directory wins over a repository of the same name; tests run in the crate's directory.
    assert_eq!(HfSource::open("src/hf", &hub, &NoProgress).unwrap().dir(), Path::new("src/hf"));
}
