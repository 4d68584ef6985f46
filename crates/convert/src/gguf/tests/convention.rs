//! Checkpoints written as the public converters write them: names from the tables of the PyPI package `gguf`
//! (tools/gguf_names.py), values changed and rows reordered as those converters do.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::writer::{Item, Writer};
use super::{models, read_json};

/// A tensor in f32.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Dense {
    pub(super) shape: Vec<u64>,
    pub(super) values: Vec<f32>,
}

impl Dense {
    /// Length of what one entry of dimension 0 holds.
    fn row(&self) -> usize {
        self.values.len() / self.shape[0] as usize
    }

    /// Entries of dimension 0 in the order `order`.
    pub(super) fn rows(&self, order: impl IntoIterator<Item = usize>) -> Self {
        let row = self.row();
        let values: Vec<f32> = order.into_iter().flat_map(|r| self.values[r * row..(r + 1) * row].to_vec()).collect();
        let mut shape = self.shape.clone();
        shape[0] = (values.len() / row) as u64;
        Self { shape, values }
    }

    fn transposed(&self) -> Self {
        let [rows, columns] = [self.shape[0] as usize, self.shape[1] as usize];
        let at = |i: usize| self.values[(i % rows) * columns + i / rows];
        Self { shape: vec![columns as u64, rows as u64], values: (0..rows * columns).map(at).collect() }
    }

    fn map(mut self, f: impl Fn(f32) -> f32) -> Self {
        self.values.iter_mut().for_each(|v| *v = f(*v));
        self
    }

    fn reshaped(mut self, shape: &[usize]) -> Self {
        self.shape = shape.iter().map(|&d| d as u64).collect();
        assert_eq!(self.shape.iter().product::<u64>() as usize, self.values.len());
        self
    }

    fn stacked(parts: &[Self]) -> Self {
        let mut shape = vec![parts.len() as u64];
        shape.extend(&parts[0].shape);
        Self { shape, values: parts.iter().flat_map(|p| p.values.clone()).collect() }
    }

    fn concatenated(parts: &[Self]) -> Self {
        let mut shape = parts[0].shape.clone();
        shape[0] = parts.iter().map(|p| p.shape[0]).sum();
        Self { shape, values: parts.iter().flat_map(|p| p.values.clone()).collect() }
    }
}

/// All tensors of the checkpoint in `dir`.
pub(super) fn checkpoint(dir: &Path) -> BTreeMap<String, Dense> {
    let mut out = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "safetensors") {
            continue;
        }
        let bytes = std::fs::read(path).unwrap();
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            let data = view.data();
            let halves = || data.chunks(2).map(|b| b.try_into().unwrap());
            let values = match view.dtype() {
                Dtype::F32 => data.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
                Dtype::BF16 => halves().map(|b| half::bf16::from_le_bytes(b).to_f32()).collect(),
                Dtype::F16 => halves().map(|b| half::f16::from_le_bytes(b).to_f32()).collect(),
                other => panic!("{other:?}"),
            };
            out.insert(name, Dense { shape: view.shape().iter().map(|&d| d as u64).collect(), values });
        }
    }
    out
}

/// The configuration's sizes, by their Hugging Face names.
pub(super) struct Config(pub(super) Value);

impl Config {
    pub(super) fn size(&self, key: &str) -> usize {
        self.0[key].as_u64().unwrap_or_else(|| panic!("{key}")) as usize
    }

    fn rope(&self, key: &str) -> Option<&Value> {
        let parameters = &self.0["rope_parameters"];
        let parameters =
            if parameters["full_attention"].is_object() { &parameters["full_attention"] } else { parameters };
        Some(&parameters[key]).filter(|v| !v.is_null())
    }

    fn head_dim(&self) -> usize {
        self.0["head_dim"]
            .as_u64()
            .map_or_else(|| self.size("hidden_size") / self.size("num_attention_heads"), |d| d as usize)
    }
}

/// The checkpoint in `dir` as a GGUF file of architecture `arch`.
pub(super) fn written(dir: &Path, arch: &str) -> Writer {
    let config = Config(read_json(&dir.join("config.json")));
    let mut writer = Writer::default();
    writer.set("general.architecture", arch);
    metadata(&mut writer, arch, &config);
    models::add_tokenizer(&mut writer);
    let table = read_json(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf_names.json"));
    for (name, tensor) in converted(arch, &config, checkpoint(dir)) {
        writer.f32_tensor(&gguf_name(&table, arch, &name), &tensor.shape, &tensor.values);
    }
    writer
}

/// The name in the tables, which know stems without suffix and without the number of the layer.
fn gguf_name(table: &Value, arch: &str, name: &str) -> String {
    let number = |part: &&str| part.parse::<usize>().is_ok();
    let layer = name.split('.').find(number).unwrap_or("0").to_owned();
    let generic = name.split('.').map(|p| if number(&p) { "{bid}" } else { p }).collect::<Vec<_>>().join(".");
    let (stem, suffix) = match generic.rsplit_once('.') {
        Some((stem, suffix @ ("weight" | "bias"))) => (stem, format!(".{suffix}")),
        _ => (generic.as_str(), String::new()),
    };
    // Dense layers of qwen2moe have no entry of their own: converters do not know that variant.
    // `qkv.0` and `gate.0` stand for names that converters format themselves.
    let stem = stem.trim_end_matches(".{bid}");
    let found = table[arch][stem].as_str().or_else(|| table["llama"][stem].as_str());
    let found = found.unwrap_or_else(|| panic!("{arch}: {name}"));
    format!("{}{suffix}", found.replace("{bid}", &layer))
}

/// Tensors under the names that converters look up, stacked, cut, reordered and changed.
fn converted(arch: &str, config: &Config, tensors: BTreeMap<String, Dense>) -> Vec<(String, Dense)> {
    let mut out = Vec::new();
    let mut experts: BTreeMap<String, BTreeMap<usize, Dense>> = BTreeMap::new();
    for (name, tensor) in tensors {
        if let Some((stem, rest)) = name.split_once(".experts.") {
            let (number, kind) = rest.split_once('.').unwrap();
            let stem = match arch {
                "llama" => stem.trim_start_matches("model.").replace("block_sparse_moe", "feed_forward"),
                "lfm2moe" => stem.trim_start_matches("model.").to_owned(),
                _ => stem.to_owned(),
            };
            let all = experts.entry(format!("{stem}.experts.{kind}")).or_default();
            all.insert(number.parse().unwrap(), tensor);
        } else {
            out.extend(one(arch, config, name, tensor));
        }
    }
    for (name, all) in experts {
        out.extend(one(arch, config, name, Dense::stacked(&all.into_values().collect::<Vec<_>>())));
    }
    out
}

fn one(arch: &str, config: &Config, name: String, tensor: Dense) -> Vec<(String, Dense)> {
    match arch {
        "llama" | "smollm3" => pairs(config, name, tensor),
        "gemma" | "gemma2" | "gemma3" if name.ends_with("norm.weight") => vec![(name, tensor.map(|v| v + 1.0))],
        "qwen3next" | "qwen35" | "qwen35moe" => hybrid(arch, config, name, tensor),
        "deepseek2" => deepseek(config, name, tensor),
        "lfm2" | "lfm2moe" => {
            let name = name.replace(".expert_bias", ".expert_bias.bias");
            let tensor = if name.contains("conv.conv") {
                let shape = [tensor.shape[0] as usize, tensor.shape[2] as usize];
                tensor.reshaped(&shape)
            } else {
                tensor
            };
            vec![(name, tensor)]
        }
        _ => vec![(name, tensor)],
    }
}

/// `[heads, 2, half]` rows of q and k become `[heads, half, 2]`.
fn pairs(config: &Config, name: String, tensor: Dense) -> Vec<(String, Dense)> {
    let heads = match &name {
        n if n.ends_with("q_proj.weight") => config.size("num_attention_heads"),
        n if n.ends_with("k_proj.weight") => config.size("num_key_value_heads"),
        _ => return vec![(name, tensor)],
    };
    let head_dim = tensor.shape[0] as usize / heads;
    let order = (0..heads)
        .flat_map(|h| (0..head_dim / 2).flat_map(move |j| [h * head_dim + j, h * head_dim + head_dim / 2 + j]));
    let reordered = tensor.rows(order);
    vec![(name, reordered)]
}

/// `kv_b` cut into the part of the keys, transposed per head, and that of the values.
fn deepseek(config: &Config, name: String, tensor: Dense) -> Vec<(String, Dense)> {
    if name.starts_with(&format!("model.layers.{}.", config.size("num_hidden_layers"))) {
        return Vec::new();
    }
    let Some(stem) = name.strip_suffix("kv_b_proj.weight") else {
        return vec![(name.replace("e_score_correction_bias", "e_score_correction.bias"), tensor)];
    };
    let (nope, value) = (config.size("qk_nope_head_dim"), config.size("v_head_dim"));
    let head = |h: usize, first: usize, len: usize| {
        let start = h * (nope + value) + first;
        tensor.rows(start..start + len)
    };
    let heads = 0..config.size("num_attention_heads");
    let k: Vec<Dense> = heads.clone().map(|h| head(h, 0, nope).transposed()).collect();
    let v: Vec<Dense> = heads.map(|h| head(h, nope, value)).collect();
    vec![(format!("{stem}k_b_proj.weight"), Dense::stacked(&k)), (format!("{stem}v_b_proj.weight"), Dense::stacked(&v))]
}

/// Order of value heads in a file of `qwen35`: `[key heads, group, rows]` becomes `[group, key heads, rows]`.
fn tiled(config: &Config, head_rows: usize) -> Vec<usize> {
    let keys = config.size("linear_num_key_heads");
    let group = config.size("linear_num_value_heads") / keys;
    let head = move |v: usize, k: usize| (k * group + v) * head_rows;
    (0..group).flat_map(|v| (0..keys).flat_map(move |k| head(v, k)..head(v, k) + head_rows)).collect()
}

fn hybrid(arch: &str, config: &Config, name: String, tensor: Dense) -> Vec<(String, Dense)> {
    let layers = config.size("num_hidden_layers");
    let name = match name.strip_prefix("mtp.") {
        Some(rest) => {
            let rest = rest.trim_start_matches("layers.0.");
            let renamed = [
                ("fc.", "eh_proj."),
                ("pre_fc_norm_embedding.", "enorm."),
                ("pre_fc_norm_hidden.", "hnorm."),
                ("norm.", "shared_head.norm."),
            ];
            let found = renamed.iter().find(|(theirs, _)| rest.starts_with(theirs));
            let rest = found.map_or_else(|| rest.to_owned(), |(theirs, ours)| rest.replacen(theirs, ours, 1));
            format!("model.layers.{layers}.{rest}")
        }
        None => name,
    };
    let tensor = if arch == "qwen3next" { tensor } else { retiled(config, &name, tensor) };
    let channels = tensor.shape[0] as usize;
    let (name, tensor) = match &name {
        n if n.ends_with(".A_log") => (name, tensor.map(|v| -v.exp())),
        n if n.ends_with(".dt_bias") => (name.replace(".dt_bias", ".dt_proj.bias"), tensor),
        n if n.contains("conv1d") => (name, tensor.reshaped(&[channels, config.size("linear_conv_kernel_dim")])),
        n if n.ends_with("norm.weight") && !n.ends_with("linear_attn.norm.weight") => (name, tensor.map(|v| v + 1.0)),
        n if n.contains("in_proj_qkvz") => return ungrouped(config, &name, &tensor),
        _ => (name, tensor),
    };
    vec![(name, tensor)]
}

fn retiled(config: &Config, name: &str, tensor: Dense) -> Dense {
    let value_dim = || config.size("linear_value_head_dim");
    let front = 2 * config.size("linear_num_key_heads") * config.size("linear_key_head_dim");
    match name.split_once("linear_attn.").map_or("", |(_, stem)| stem) {
        "in_proj_qkv.weight" | "conv1d.weight" => {
            tensor.rows((0..front).chain(tiled(config, value_dim()).into_iter().map(|r| front + r)))
        }
        "in_proj_z.weight" => tensor.rows(tiled(config, value_dim())),
        "in_proj_a.weight" | "in_proj_b.weight" | "A_log" | "dt_bias" => tensor.rows(tiled(config, 1)),
        "out_proj.weight" => tensor.transposed().rows(tiled(config, value_dim())).transposed(),
        _ => tensor,
    }
}

/// `in_proj_qkvz`, grouped by key head, becomes all q, all k, all v; and all z.
fn ungrouped(config: &Config, name: &str, tensor: &Dense) -> Vec<(String, Dense)> {
    let keys = config.size("linear_num_key_heads");
    let key = config.size("linear_key_head_dim");
    let value = config.size("linear_num_value_heads") / keys * config.size("linear_value_head_dim");
    let part = |first: usize, len: usize| {
        let stride = 2 * key + 2 * value;
        tensor.rows((0..keys).flat_map(move |h| h * stride + first..h * stride + first + len))
    };
    let qkv = Dense::concatenated(&[part(0, key), part(key, key), part(2 * key, value)]);
    let layer = name.split('.').nth(2).unwrap();
    // Converters format these two names themselves.
    vec![(format!("qkv.{layer}.weight"), qkv), (format!("gate.{layer}.weight"), part(2 * key + value, value))]
}

fn metadata(writer: &mut Writer, arch: &str, config: &Config) {
    let mut set = |key: &str, item: Item| writer.set(&format!("{arch}.{key}"), item);
    let json = &config.0;
    for (key, from) in [
        ("block_count", "num_hidden_layers"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("context_length", "max_position_embeddings"),
        ("expert_count", "num_local_experts"),
        ("expert_count", "num_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_group_count", "n_group"),
        ("expert_group_used_count", "topk_group"),
    ] {
        if let Some(value) = json[from].as_u64() {
            set(key, Item::U32(value as u32));
        }
    }
    let float = |value: &Value| Item::F32(value.as_f64().unwrap() as f32);
    let eps = if json["norm_eps"].is_null() { &json["rms_norm_eps"] } else { &json["norm_eps"] };
    set("attention.layer_norm_rms_epsilon", float(eps));
    if let Some(theta) = config.rope("rope_theta").or_else(|| json.get("rope_theta"))
        && !matches!(arch, "gemma" | "gemma2")
    {
        set("rope.freq_base", float(theta));
    }
    if let Some(head_dim) = json["head_dim"].as_u64() {
        set("attention.key_length", Item::U32(head_dim as u32));
        set("attention.value_length", Item::U32(head_dim as u32));
    }
    match config.rope("rope_type").and_then(Value::as_str) {
        Some("linear") => {
            set("rope.scaling.type", "linear".into());
            set("rope.scaling.factor", float(config.rope("factor").unwrap()));
        }
        Some("yarn") => {
            set("rope.scaling.type", "yarn".into());
            set("rope.scaling.factor", float(config.rope("factor").unwrap()));
            let original = config.rope("original_max_position_embeddings").unwrap().as_u64().unwrap();
            set("rope.scaling.original_context_length", Item::U32(original as u32));
            set("rope.scaling.yarn_beta_fast", float(config.rope("beta_fast").unwrap()));
            set("rope.scaling.yarn_beta_slow", float(config.rope("beta_slow").unwrap()));
        }
        _ => {}
    }
    special_metadata(writer, arch, config);
}

/// Keys that only some converters write.
fn special_metadata(writer: &mut Writer, arch: &str, config: &Config) {
    let mut set = |key: &str, item: Item| writer.set(&format!("{arch}.{key}"), item);
    let size = |key: &str| Item::U32(config.size(key) as u32);
    let float = |key: &str| Item::F32(config.0[key].as_f64().unwrap() as f32);
    match arch {
        "llama" | "smollm3" => set("rope.dimension_count", Item::U32(config.head_dim() as u32)),
        "qwen2moe" => {
            set("expert_feed_forward_length", size("moe_intermediate_size"));
            set("expert_shared_feed_forward_length", size("shared_expert_intermediate_size"));
        }
        "qwen3moe" => set("expert_feed_forward_length", size("moe_intermediate_size")),
        "gemma2" => {
            set("attn_logit_softcapping", float("attn_logit_softcapping"));
            set("final_logit_softcapping", float("final_logit_softcapping"));
            set("attention.sliding_window", size("sliding_window"));
        }
        "gemma3" => set("attention.sliding_window", size("sliding_window")),
        "phi3" => {
            set("rope.dimension_count", Item::U32(config.head_dim() as u32));
            set("rope.scaling.original_context_length", size("original_max_position_embeddings"));
            let window = config.0["sliding_window"].as_u64().unwrap_or(0);
            set("attention.sliding_window", Item::U32(window as u32));
        }
        "qwen3next" | "qwen35" | "qwen35moe" => {
            set("ssm.conv_kernel", size("linear_conv_kernel_dim"));
            set("ssm.state_size", size("linear_key_head_dim"));
            set("ssm.group_count", size("linear_num_key_heads"));
            set("ssm.time_step_rank", size("linear_num_value_heads"));
            let inner = config.size("linear_value_head_dim") * config.size("linear_num_value_heads");
            set("ssm.inner_size", Item::U32(inner as u32));
            set("full_attention_interval", Item::U32(4));
            set("rope.dimension_count", Item::U32(config.head_dim() as u32 / 4));
            if arch != "qwen3next" {
                set("rope.dimension_sections", Item::I32s(vec![11, 11, 10, 0]));
            }
            if arch != "qwen35" {
                set("expert_feed_forward_length", size("moe_intermediate_size"));
                set("expert_shared_feed_forward_length", size("shared_expert_intermediate_size"));
            }
        }
        "deepseek2" => latent_metadata(&mut set, config),
        "lfm2" | "lfm2moe" => {
            set("attention.head_count_kv", Item::I32s(vec![0, config.size("num_key_value_heads") as i32, 0]));
            set("shortconv.l_cache", size("conv_L_cache"));
            if arch == "lfm2moe" {
                set("expert_feed_forward_length", size("moe_intermediate_size"));
                set("leading_dense_block_count", size("num_dense_layers"));
                set("expert_gating_func", Item::U32(2));
            }
        }
        _ => {}
    }
}

fn latent_metadata(set: &mut impl FnMut(&str, Item), config: &Config) {
    let size = |key: &str| config.size(key) as u32;
    let (rank, nope, rope) = (size("kv_lora_rank"), size("qk_nope_head_dim"), size("qk_rope_head_dim"));
    for (key, value) in [
        ("attention.head_count_kv", 1),
        ("attention.q_lora_rank", size("q_lora_rank")),
        ("attention.kv_lora_rank", rank),
        ("attention.key_length", rank + rope),
        ("attention.value_length", rank),
        ("attention.key_length_mla", nope + rope),
        ("attention.value_length_mla", size("v_head_dim")),
        ("rope.dimension_count", rope),
        ("leading_dense_block_count", size("first_k_dense_replace")),
        ("expert_count", size("n_routed_experts")),
        ("expert_shared_count", size("n_shared_experts")),
        ("expert_feed_forward_length", size("moe_intermediate_size")),
        ("expert_gating_func", 2),
    ] {
        set(key, Item::U32(value));
    }
    set("expert_weights_scale", Item::F32(config.0["routed_scaling_factor"].as_f64().unwrap() as f32));
    set("expert_weights_norm", Item::Bool(true));
    let all = config.rope("mscale_all_dim").unwrap().as_f64().unwrap();
    set("rope.scaling.yarn_log_multiplier", Item::F32((0.1 * all) as f32));
}
