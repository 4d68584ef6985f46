//! Every architecture: a fixture written by the conventions of the public converters must come back as the import of
//! the checkpoint itself gives it: the same arch, names, shapes and values.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cortiq_cmf::RopeScaling;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use super::convention::{self, written};
use super::fixture;
use super::writer::{Item, Writer};
use crate::gguf::{GgmlType, architectures, dequantize, import};
use crate::{ConvertError, HfSource, ImportedModel};

fn model(name: &str) -> PathBuf {
    fixture(&format!("models/{name}"))
}

/// The import of the checkpoint, without the optional block that converters of some architectures leave out.
fn reference(dir: &Path, without_mtp: bool) -> ImportedModel {
    let mut model = HfSource::local(dir).unwrap().import().unwrap();
    if without_mtp {
        model.tensors.retain(|t| !t.name.starts_with("model.mtp."));
        model.header.arch.mtp = None;
        model.header.extensions.retain(|name| name != "mtp_block");
    }
    model
}

/// Values by name, and shapes.
fn loaded(model: &ImportedModel) -> BTreeMap<String, (Vec<u32>, Vec<f32>)> {
    let each = |t: &crate::SourceTensor| (t.name.clone(), (t.shape.clone(), (t.load)().unwrap()));
    model.tensors.iter().map(each).collect()
}

/// Compares tensors and arch; `adjust` makes the expected arch what a GGUF file can say.
fn assert_equal(label: &str, found: &ImportedModel, expected: &ImportedModel, adjust: fn(&mut Value)) {
    let (ours, theirs) = (loaded(found), loaded(expected));
    let names = |tensors: &BTreeMap<String, _>| tensors.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&ours), names(&theirs), "{label}");
    assert_eq!(found.tensors.len(), ours.len(), "{label}: a name occurs twice");
    let gemma = serde_json::to_value(expected.header.arch.norm_style).unwrap() == "gemma";
    for (name, (shape, values)) in &ours {
        let (expected_shape, expected_values) = &theirs[name];
        assert_eq!(shape, expected_shape, "{label} {name}");
        let near: Box<dyn Fn(f32, f32) -> bool> = if name.ends_with("A_log") {
            // A file has -exp(A_log), rounded to f32.
            Box::new(|a, b| (a - b).abs() <= 2e-7 * b.abs().max(1.0))
        } else if gemma && name.ends_with("norm.weight") && !name.ends_with("linear_attn.norm.weight") {
            // What a norm multiplies by is the same to the bit.
            Box::new(|a, b| 1.0 + a == 1.0 + b)
        } else {
            Box::new(|a, b| a == b)
        };
        let different = values.iter().zip(expected_values).position(|(&a, &b)| !near(a, b));
        assert_eq!(different, None, "{label} {name}");
        assert_eq!(values.len(), expected_values.len(), "{label} {name}");
    }
    let mut expected_arch = serde_json::to_value(&expected.header.arch).unwrap();
    adjust(&mut expected_arch);
    assert_eq!(serde_json::to_value(&found.header.arch).unwrap(), expected_arch, "{label}");
    let sorted = |names: &[String]| {
        let mut names = names.to_vec();
        names.sort();
        names
    };
    assert_eq!(sorted(&found.header.extensions), sorted(&expected.header.extensions), "{label}");
    found.header.check().unwrap();
}

/// The scale of the scores is not in a file; the width of a head is what converters' readers take.
fn without_query_scale(arch: &mut Value) {
    arch["query_pre_attn_scalar"] = json!(arch["head_dim"].as_f64());
}

#[test]
fn fixtures_come_back_as_their_checkpoints() {
    type Change = fn(&mut Value);
    let same: Change = |_| {};
    let cases: [(&str, &str, Change); 13] = [
        ("mixtral", "llama", same),
        ("qwen2_moe", "qwen2moe", same),
        ("qwen3_moe", "qwen3moe", same),
        ("qwen3_next", "qwen3next", same),
        ("qwen3_5", "qwen35", same),
        ("qwen3_5_moe", "qwen35moe", same),
        ("gemma2", "gemma2", without_query_scale),
        ("gemma3_text", "gemma3", without_query_scale),
        ("phi3", "phi3", same),
        ("olmo2", "olmo2", same),
        ("smollm3", "smollm3", same),
        ("deepseek_v3", "deepseek2", same),
        ("llama_gqa", "llama", same),
    ];
    for (name, arch, adjust) in cases {
        let dir = model(name);
        let mut writer = written(&dir, arch);
        // The fixture has multi-token prediction, of which the first converters wrote nothing.
        writer.tensors.retain(|t| arch != "qwen3next" || !t.name.starts_with("blk.4."));
        let found = import(writer.file()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_equal(name, &found, &reference(&dir, arch == "qwen3next"), adjust);
    }
    let dir = model("qwen3_next");
    let mut writer = written(&dir, "qwen3next");
    writer.set("qwen3next.block_count", Item::U32(5));
    writer.set("qwen3next.nextn_predict_layers", Item::U32(1));
    assert_equal("mtp", &import(writer.file()).unwrap(), &reference(&dir, false), |_| {});
}

/// A copy of a fixture's small files with other keys and tensors.
fn checkpoint(
    of: &str,
    change: impl FnOnce(&mut Value),
    tensors: &BTreeMap<String, convention::Dense>,
) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        std::fs::copy(model(of).join(file), dir.path().join(file)).unwrap();
    }
    let mut config = super::read_json(&model(of).join("config.json"));
    change(&mut config);
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let bytes: BTreeMap<&String, Vec<u8>> =
        tensors.iter().map(|(name, t)| (name, t.values.iter().flat_map(|v| v.to_le_bytes()).collect())).collect();
    let view = |(name, t): (&String, &convention::Dense)| {
        let shape = t.shape.iter().map(|&d| d as usize).collect();
        (name.clone(), TensorView::new(Dtype::F32, shape, &bytes[name]).unwrap())
    };
    let views: BTreeMap<String, TensorView<'_>> = tensors.iter().map(view).collect();
    safetensors::serialize_to_file(views, None, &dir.path().join("model.safetensors")).unwrap();
    dir
}

/// Multi-token prediction is one more block in files of Qwen 3.5.
#[test]
fn multi_token_prediction_comes_along() {
    for (name, arch) in [("qwen3_5_vl_layout", "qwen35"), ("qwen3_5_moe_vl_layout", "qwen35moe")] {
        let mut tensors: BTreeMap<String, convention::Dense> = BTreeMap::new();
        for (tensor, value) in convention::checkpoint(&model(name)) {
            if tensor.contains("visual.") {
                continue;
            }
            let tensor = tensor.replace("model.language_model.", "model.");
            let fused = |suffix: &str| tensor.strip_suffix(suffix).map(str::to_owned);
            // The converter stacks experts in any case; here from one tensor per expert.
            let (stem, kinds): (String, &[&str]) = match (fused("gate_up_proj"), fused(".down_proj")) {
                (Some(stem), _) => (stem.trim_end_matches('.').to_owned(), &["gate_proj", "up_proj"]),
                (_, Some(stem)) if stem.ends_with("experts") => (stem, &["down_proj"]),
                _ => {
                    tensors.insert(tensor, value);
                    continue;
                }
            };
            let experts = value.shape[0] as usize;
            let rows = value.shape[1] as usize;
            let flat = convention::Dense { shape: vec![(experts * rows) as u64, value.shape[2]], values: value.values };
            for expert in 0..experts {
                for (part, kind) in kinds.iter().enumerate() {
                    let len = rows / kinds.len();
                    let start = expert * rows + part * len;
                    tensors.insert(format!("{stem}.{expert}.{kind}.weight"), flat.rows(start..start + len));
                }
            }
        }
        let text = super::read_json(&model(name).join("config.json"))["text_config"].clone();
        let dir = checkpoint(name, |config| *config = text, &tensors);
        let mut config = super::read_json(&dir.path().join("config.json"));
        config["architectures"] =
            json!([if arch == "qwen35" { "Qwen3_5ForCausalLM" } else { "Qwen3_5MoeForCausalLM" }]);
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let mut writer = written(dir.path(), arch);
        let layers = config["num_hidden_layers"].as_u64().unwrap() as u32;
        writer.set(&format!("{arch}.block_count"), Item::U32(layers + 1));
        writer.set(&format!("{arch}.nextn_predict_layers"), Item::U32(1));
        let expected = reference(dir.path(), false);
        assert!(expected.header.arch.mtp.is_some(), "{name}");
        assert_equal(name, &import(writer.file()).unwrap(), &expected, |_| {});
    }
}

#[test]
fn longrope_comes_from_two_tensors_and_a_factor() {
    let dir = model("phi3_longrope");
    let mut writer = written(&dir, "phi3");
    let parameters = super::read_json(&dir.join("config.json"))["rope_parameters"].clone();
    for name in ["long", "short"] {
        let factors: Vec<f32> = parameters[format!("{name}_factor")]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| v.as_f64().unwrap() as f32)
            .collect();
        writer.f32_tensor(&format!("rope_factors_{name}.weight"), &[factors.len() as u64], &factors);
    }
    let factor = (1.0f64 + 8f64.ln() / 128f64.ln()).sqrt();
    writer.set("phi3.rope.scaling.attn_factor", Item::F32(factor as f32));
    assert_equal("phi3_longrope", &import(writer.file()).unwrap(), &reference(&dir, false), |_| {});

    writer.set("phi3.rope.scaling.attn_factor", Item::F32(1.5));
    match import(writer.file()).unwrap().header.arch.rope_scaling {
        Some(RopeScaling::LongRope { attention_factor, .. }) => assert_eq!(attention_factor, Some(1.5)),
        other => panic!("{other:?}"),
    }
    writer.tensors.retain(|t| t.name != "rope_factors_short.weight");
    let message = import(writer.file()).unwrap_err().to_string();
    assert!(message.contains("rope_factors_short.weight"), "{message}");
}

/// Gemma 1 from the tensors of Gemma 3, as far as it has them.
#[test]
fn gemma_one() {
    let mut tensors = convention::checkpoint(&model("gemma3_text"));
    let left_out = ["post_feedforward_layernorm", "pre_feedforward_layernorm", "q_norm", "k_norm"];
    tensors.retain(|name, _| !left_out.iter().any(|stem| name.contains(stem)));
    let dir = checkpoint(
        "gemma3_text",
        |config| {
            config["model_type"] = json!("gemma");
            config["architectures"] = json!(["GemmaForCausalLM"]);
            config["rope_parameters"] = json!({"rope_theta": 10_000.0, "rope_type": "default"});
        },
        &tensors,
    );
    let found = import(written(dir.path(), "gemma").file()).unwrap();
    assert_equal("gemma", &found, &reference(dir.path(), false), |_| {});
}

/// Published names and shapes of LFM2: layer 1 has attention, the others a convolution.
fn lfm2(experts: bool) -> BTreeMap<String, convention::Dense> {
    let mut seed = 7u32;
    let mut random = move || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let mut list = BTreeMap::new();
    let mut add = |name: String, shape: &[u64]| {
        let values = (0..shape.iter().product()).map(|_| random()).collect();
        list.insert(name, convention::Dense { shape: shape.to_vec(), values });
    };
    add("model.embed_tokens.weight".to_owned(), &[768, 64]);
    add("model.embedding_norm.weight".to_owned(), &[64]);
    for layer in 0..3u64 {
        let mut add = |name: &str, shape: &[u64]| add(format!("model.layers.{layer}.{name}"), shape);
        add("operator_norm.weight", &[64]);
        add("ffn_norm.weight", &[64]);
        if layer == 1 {
            for (name, shape) in
                [("q_proj", [64, 64]), ("k_proj", [32, 64]), ("v_proj", [32, 64]), ("out_proj", [64, 64])]
            {
                add(&format!("self_attn.{name}.weight"), &shape);
            }
            add("self_attn.q_layernorm.weight", &[16]);
            add("self_attn.k_layernorm.weight", &[16]);
        } else {
            add("conv.in_proj.weight", &[192, 64]);
            add("conv.conv.weight", &[64, 1, 3]);
            add("conv.out_proj.weight", &[64, 64]);
        }
        let mut ffn = |stem: String, width: u64| {
            for (name, shape) in [("w1", [width, 64]), ("w3", [width, 64]), ("w2", [64, width])] {
                add(&format!("{stem}.{name}.weight"), &shape);
            }
        };
        if experts && layer > 0 {
            (0..4).for_each(|expert| ffn(format!("feed_forward.experts.{expert}"), 32));
            add("feed_forward.gate.weight", &[4, 64]);
            add("feed_forward.expert_bias", &[4]);
        } else {
            ffn("feed_forward".to_owned(), 96);
        }
    }
    list
}

#[test]
fn lfm2_with_and_without_experts() {
    for (arch, head, experts) in [("lfm2", "Lfm2ForCausalLM", false), ("lfm2moe", "Lfm2MoeForCausalLM", true)] {
        let dir = checkpoint(
            "qwen3",
            |config| {
                *config = json!({
                    "architectures": [head], "model_type": if experts { "lfm2_moe" } else { "lfm2" },
                    "block_auto_adjust_ff_dim": false, "conv_L_cache": 3, "conv_bias": false, "hidden_size": 64,
                    "intermediate_size": 96, "layer_types": ["conv", "full_attention", "conv"],
                    "max_position_embeddings": 1024, "moe_intermediate_size": 32, "norm_eps": 1e-5,
                    "norm_topk_prob": true, "num_attention_heads": 4, "num_dense_layers": 1, "num_hidden_layers": 3,
                    "num_key_value_heads": 2, "rope_theta": 1e6, "routed_scaling_factor": 1.0,
                    "tie_word_embeddings": true, "use_expert_bias": true, "vocab_size": 768,
                });
                if experts {
                    config["num_experts"] = json!(4);
                    config["num_experts_per_tok"] = json!(2);
                }
            },
            &lfm2(experts),
        );
        let mut writer = written(dir.path(), arch);
        assert_equal(arch, &import(writer.file()).unwrap(), &reference(dir.path(), false), |_| {});
        writer.set(&format!("{arch}.attention.head_count_kv"), Item::I32s(vec![2, 2, 0]));
        let message = import(writer.file()).unwrap_err().to_string();
        assert!(message.contains("head_count_kv") && message.contains("blk.0"), "{message}");
    }
}

/// The matrices of an expert are a slice of the quantised tensor of all.
#[test]
fn experts_are_cut_out_of_quantised_tensors() {
    let mut writer = written(&model("mixtral"), "llama");
    let stack = writer.tensors.iter_mut().find(|t| t.name == "blk.1.ffn_gate_exps.weight").unwrap();
    let values = stack.shape.iter().product::<u64>() as usize;
    stack.type_id = GgmlType::Q8_0.id();
    // Scales of 1.0 and other small halves, so that every block differs.
    stack.data = (0..values / 32)
        .flat_map(|block| {
            let scale = half::f16::from_f32(1.0 + block as f32 / 64.0).to_le_bytes();
            scale.into_iter().chain((0..32).map(move |i| (block * 7 + i) as u8))
        })
        .collect();
    let all = dequantize(GgmlType::Q8_0, &stack.data).unwrap();
    let expert_len = (stack.shape[1] * stack.shape[2]) as usize;
    let model = import(writer.file()).unwrap();
    for expert in 0..4 {
        let name = format!("model.layers.1.mlp.experts.{expert}.gate_proj.weight");
        let tensor = model.tensors.iter().find(|t| t.name == name).unwrap();
        assert_eq!(tensor.native, crate::NativeDtype::Quantised);
        assert_eq!((tensor.load)().unwrap(), all[expert * expert_len..(expert + 1) * expert_len], "{name}");
    }
}

/// Other forms in which the same tensors are found.
#[test]
fn older_and_optional_layouts() {
    type Layout = (&'static str, &'static str, fn(&mut Writer));
    let cases: [Layout; 5] = [
        // One tensor per expert.
        ("mixtral", "llama", |w| {
            replace(w, "_exps.weight", |w, t| {
                let stem = t.name.strip_suffix("_exps.weight").unwrap().to_owned();
                let size = t.data.len() / 4;
                for (expert, data) in t.data.chunks(size).enumerate() {
                    w.tensor(&format!("{stem}.{expert}.weight"), &t.shape[1..], t.type_id, data.to_vec());
                }
            })
        }),
        // Gate and up of all experts in one tensor.
        ("qwen3_moe", "qwen3moe", |w| {
            replace(w, "ffn_gate_exps.weight", |w, gate| {
                let name = gate.name.replace("gate_exps", "up_exps");
                let at = w.tensors.iter().position(|t| t.name == name).unwrap();
                let up = w.tensors.remove(at);
                let size = gate.data.len() / 8;
                let both = gate.data.chunks(size).zip(up.data.chunks(size));
                let data = both.flat_map(|(gate, up)| [gate, up].concat()).collect();
                let shape = [gate.shape[0], 2 * gate.shape[1], gate.shape[2]];
                w.tensor(&gate.name.replace("gate_exps", "gate_up_exps"), &shape, gate.type_id, data);
            })
        }),
        // q, k and v in one tensor.
        ("qwen3_moe", "qwen3moe", |w| {
            replace(w, "attn_q.weight", |w, q| {
                let mut data = q.data.clone();
                let mut rows = q.shape[0];
                for other in ["attn_k", "attn_v"] {
                    let name = q.name.replace("attn_q", other);
                    let at = w.tensors.iter().position(|t| t.name == name).unwrap();
                    let tensor = w.tensors.remove(at);
                    rows += tensor.shape[0];
                    data.extend(tensor.data);
                }
                w.tensor(&q.name.replace("attn_q", "attn_qkv"), &[rows, q.shape[1]], q.type_id, data);
            })
        }),
        // Quantisers drop dimensions of 1.
        ("qwen2_moe", "qwen2moe", |w| {
            replace(w, "ffn_gate_inp_shexp.weight", |w, t| {
                w.tensor(&t.name, &[64], t.type_id, t.data.clone());
            })
        }),
        // Widths that follow from tensors.
        ("qwen2_moe", "qwen2moe", |w| w.remove("qwen2moe.expert_shared_feed_forward_length")),
    ];
    for (name, arch, change) in cases {
        let mut writer = written(&model(name), arch);
        change(&mut writer);
        assert_equal(name, &import(writer.file()).unwrap(), &reference(&model(name), false), |_| {});
    }
}

/// Takes out every tensor whose name ends with `suffix` and lets `put` add what is there instead.
fn replace(writer: &mut Writer, suffix: &str, put: impl Fn(&mut Writer, super::writer::Tensor)) {
    let names: Vec<String> =
        writer.tensors.iter().filter(|t| t.name.ends_with(suffix)).map(|t| t.name.clone()).collect();
    assert!(!names.is_empty(), "{suffix}");
    for name in names {
        let at = writer.tensors.iter().position(|t| t.name == name).unwrap();
        let tensor = writer.tensors.remove(at);
        put(writer, tensor);
    }
}

/// Files of DeepSeek before the projection was cut in two, and of Qwen3-Next before it was ungrouped.
#[test]
fn first_layouts_of_deepseek_and_qwen3_next() {
    let dir = model("deepseek_v3");
    let tensors = convention::checkpoint(&dir);
    let mut writer = written(&dir, "deepseek2");
    writer.tensors.retain(|t| !t.name.contains("attn_k_b") && !t.name.contains("attn_v_b"));
    for layer in 0..3 {
        let tensor = &tensors[&format!("model.layers.{layer}.self_attn.kv_b_proj.weight")];
        writer.f32_tensor(&format!("blk.{layer}.attn_kv_b.weight"), &tensor.shape, &tensor.values);
    }
    writer.remove("deepseek2.attention.key_length_mla");
    writer.remove("deepseek2.attention.value_length_mla");
    writer.set("deepseek2.attention.key_length", Item::U32(48));
    writer.set("deepseek2.attention.value_length", Item::U32(32));
    writer.set("deepseek2.attention.head_count_kv", Item::U32(4));
    assert_equal("deepseek_v3", &import(writer.file()).unwrap(), &reference(&dir, false), |_| {});

    let dir = model("qwen3_next");
    let tensors = convention::checkpoint(&dir);
    let mut writer = written(&dir, "qwen3next");
    writer.tensors.retain(|t| !t.name.starts_with("blk.4."));
    for layer in 0..3 {
        let tensor = &tensors[&format!("model.layers.{layer}.linear_attn.in_proj_qkvz.weight")];
        writer.tensors.retain(|t| {
            t.name != format!("blk.{layer}.attn_qkv.weight") && t.name != format!("blk.{layer}.attn_gate.weight")
        });
        writer.f32_tensor(&format!("blk.{layer}.ssm_in.weight"), &tensor.shape, &tensor.values);
    }
    assert_equal("qwen3_next", &import(writer.file()).unwrap(), &reference(&dir, true), |_| {});
}

#[test]
fn what_an_architecture_cannot_express_is_named() {
    type Case = (&'static str, &'static str, fn(&mut Writer), &'static [&'static str]);
    let cases: [Case; 12] = [
        ("mixtral", "llama", |w| w.remove("llama.expert_used_count"), &["llama.expert_used_count"]),
        ("mixtral", "llama", |w| w.set("llama.expert_used_count", Item::U32(5)), &["llama.expert_used_count", "5"]),
        ("mixtral", "llama", |w| w.set("llama.expert_count", Item::U32(1 << 25)), &["llama.expert_count"]),
        ("mixtral", "llama", |w| w.set("llama.expert_gating_func", Item::U32(3)), &["expert_gating_func", "3"]),
        ("deepseek_v3", "deepseek2", |w| w.set("deepseek2.expert_gating_func", Item::U32(1)), &["softmax"]),
        (
            "deepseek_v3",
            "deepseek2",
            |w| w.remove("deepseek2.rope.scaling.yarn_log_multiplier"),
            &["yarn_log_multiplier"],
        ),
        (
            "deepseek_v3",
            "deepseek2",
            |w| w.set("deepseek2.leading_dense_block_count", Item::U32(2)),
            &["leading_dense_block_count", "2"],
        ),
        ("deepseek_v3", "deepseek2", |w| w.tensors.retain(|t| t.name != "blk.2.attn_v_b.weight"), &["blk.2.attn_v_b"]),
        ("olmo2", "olmo2", |w| w.set("olmo2.attention.sliding_window", Item::U32(64)), &["sliding_window", "OLMo 3"]),
        (
            "gemma3_text",
            "gemma3",
            |w| w.remove("gemma3.attention.sliding_window"),
            &["gemma3.attention.sliding_window"],
        ),
        ("qwen3_5", "qwen35", |w| w.set("qwen35.nextn_predict_layers", Item::U32(2)), &["nextn_predict_layers", "2"]),
        (
            "qwen3_5",
            "qwen35",
            |w| w.tensors.iter_mut().find(|t| t.name == "blk.0.ssm_a").unwrap().data.fill(0),
            &["blk.0.ssm_a", "decay"],
        ),
    ];
    for (name, arch, change, words) in cases {
        let mut writer = written(&model(name), arch);
        change(&mut writer);
        let load = |model: ImportedModel| -> Result<(), ConvertError> {
            model.tensors.iter().try_for_each(|t| (t.load)().map(drop))
        };
        let result = import(writer.file()).map_err(ConvertError::from).and_then(load);
        let message = result.unwrap_err().to_string();
        for word in words {
            assert!(message.contains(word), "{name}: {message}");
        }
    }
}

#[test]
fn a_file_without_expert_groups_is_told() {
    let mut writer = written(&model("deepseek_v3"), "deepseek2");
    writer.remove("deepseek2.expert_group_count");
    let model = import(writer.file()).unwrap();
    assert_eq!(model.header.arch.moe.unwrap().n_group, None);
    assert!(model.notes.iter().any(|note| note.contains("expert_group_count")), "{:?}", model.notes);
}

#[test]
fn sliding_layers_may_be_listed() {
    let mut writer = written(&model("gemma2"), "gemma2");
    writer.set(
        "gemma2.attention.sliding_window_pattern",
        Item::Raw(9, {
            let mut bytes = 7u32.to_le_bytes().to_vec();
            bytes.extend(4u64.to_le_bytes());
            bytes.extend([1, 1, 0, 0]);
            bytes
        }),
    );
    let arch = import(writer.file()).unwrap().header.arch;
    assert_eq!(arch.sliding_layers, Some(vec![true, true, false, false]));
    writer.set("gemma2.attention.sliding_window_pattern", Item::U32(4));
    let arch = import(writer.file()).unwrap().header.arch;
    assert_eq!(arch.sliding_layers, Some(vec![true, true, true, false]));
}

/// Sizes that do not fit the tensors are errors, never panics or large allocations.
#[test]
fn wild_sizes_are_refused() {
    let cases = [
        ("mixtral", "llama"),
        ("qwen2_moe", "qwen2moe"),
        ("qwen3_next", "qwen3next"),
        ("qwen3_5", "qwen35"),
        ("gemma3_text", "gemma3"),
        ("phi3", "phi3"),
        ("deepseek_v3", "deepseek2"),
    ];
    for (name, arch) in cases {
        let mut sound = written(&model(name), arch);
        sound.tensors.retain(|t| arch != "qwen3next" || !t.name.starts_with("blk.4."));
        let is_size = |(key, item): &&(String, Item)| matches!(item, Item::U32(_)) && key.starts_with(arch);
        for (key, _) in sound.items.iter().filter(is_size) {
            for value in [0, 1, 3, 1 << 26, u32::MAX] {
                let mut writer = sound.clone();
                writer.set(key, Item::U32(value));
                if let Ok(model) = import(writer.file()) {
                    for tensor in model.tensors {
                        assert_eq!((tensor.load)().unwrap().len() as u64, tensor.len(), "{key} = {value}: {tensor:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_architecture_has_a_test() {
    let tested = [
        "llama",
        "qwen2",
        "qwen2moe",
        "qwen3",
        "qwen3moe",
        "qwen3next",
        "qwen35",
        "qwen35moe",
        "gemma",
        "gemma2",
        "gemma3",
        "phi3",
        "olmo2",
        "smollm3",
        "deepseek2",
        "lfm2",
        "lfm2moe",
    ];
    assert_eq!(architectures(), tested);
}
