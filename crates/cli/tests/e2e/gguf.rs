//! `import-gguf`: a GGUF file made of a fixture gives the same model as its checkpoint.

use std::path::Path;

use serde_json::Value;

use crate::support::{Room, command, keys, on, on_with, one_object, read_json, repository, run};

/// Types of metadata values.
const U32: u32 = 4;
const F32: u32 = 6;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const I32: u32 = 5;
/// Types of tensors.
const TENSOR_F32: u32 = 0;
const TENSOR_BF16: u32 = 30;
/// Kinds of tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// Writes metadata and counts its entries.
#[derive(Default)]
struct Metadata {
    bytes: Vec<u8>,
    entries: u64,
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl Metadata {
    fn add(&mut self, key: &str, kind: u32, value: &[u8]) {
        self.bytes.extend([string(key), kind.to_le_bytes().to_vec(), value.to_vec()].concat());
        self.entries += 1;
    }

    fn number(&mut self, key: &str, value: &Value) {
        self.add(key, U32, &(value.as_u64().unwrap() as u32).to_le_bytes());
    }

    fn real(&mut self, key: &str, value: &Value) {
        self.add(key, F32, &(value.as_f64().unwrap() as f32).to_le_bytes());
    }

    fn text(&mut self, key: &str, value: &str) {
        self.add(key, STRING, &string(value));
    }

    fn array(&mut self, key: &str, kind: u32, items: &[Vec<u8>]) {
        let head = [&kind.to_le_bytes()[..], &(items.len() as u64).to_le_bytes()].concat();
        self.add(key, ARRAY, &[head, items.concat()].concat());
    }
}

/// The fixture `qwen3` as a GGUF file: matrices in bf16, vectors in f32, as its usual converter writes it.
fn gguf_of_qwen3(dir: &Path) -> Vec<u8> {
    let mut metadata = Metadata::default();
    architecture(&mut metadata, &read_json(&dir.join("config.json")));
    tokenizer(&mut metadata, dir);
    let (infos, data, count) = tensors(&std::fs::read(dir.join("model.safetensors")).unwrap());
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend([count.to_le_bytes(), metadata.entries.to_le_bytes()].concat());
    file.extend(metadata.bytes);
    file.extend(infos);
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(data);
    file
}

fn architecture(metadata: &mut Metadata, config: &Value) {
    metadata.text("general.architecture", "qwen3");
    for (key, name) in [
        ("block_count", "num_hidden_layers"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.key_length", "head_dim"),
        ("attention.value_length", "head_dim"),
        ("context_length", "max_position_embeddings"),
    ] {
        metadata.number(&format!("qwen3.{key}"), &config[name]);
    }
    metadata.real("qwen3.attention.layer_norm_rms_epsilon", &config["rms_norm_eps"]);
    metadata.real("qwen3.rope.freq_base", &config["rope_parameters"]["rope_theta"]);
    metadata.number("tokenizer.ggml.eos_token_id", &config["eos_token_id"]);
    metadata.number("tokenizer.ggml.padding_token_id", &config["pad_token_id"]);
}

fn tokenizer(metadata: &mut Metadata, dir: &Path) {
    let tokenizer = read_json(&dir.join("tokenizer.json"));
    let rows = read_json(&dir.join("config.json"))["vocab_size"].as_u64().unwrap() as usize;
    // Rows without a token are padding.
    let mut tokens: Vec<(String, i32)> = (0..rows).map(|id| (format!("[PAD{id}]"), UNUSED)).collect();
    for (token, id) in tokenizer["model"]["vocab"].as_object().unwrap() {
        tokens[id.as_u64().unwrap() as usize] = (token.clone(), NORMAL);
    }
    for added in tokenizer["added_tokens"].as_array().unwrap() {
        let kind = if added["special"] == true { CONTROL } else { USER_DEFINED };
        tokens[added["id"].as_u64().unwrap() as usize] = (added["content"].as_str().unwrap().to_owned(), kind);
    }
    let merges = tokenizer["model"]["merges"].as_array().unwrap();
    let merge = |pair: &Value| string(&format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()));
    metadata.text("tokenizer.ggml.model", "gpt2");
    metadata.text("tokenizer.ggml.pre", "qwen2");
    metadata.array("tokenizer.ggml.tokens", STRING, &tokens.iter().map(|(t, _)| string(t)).collect::<Vec<_>>());
    let kinds: Vec<_> = tokens.iter().map(|(_, kind)| kind.to_le_bytes().to_vec()).collect();
    metadata.array("tokenizer.ggml.token_type", I32, &kinds);
    metadata.array("tokenizer.ggml.merges", STRING, &merges.iter().map(merge).collect::<Vec<_>>());
    let template = read_json(&dir.join("tokenizer_config.json"))["chat_template"].as_str().unwrap().to_owned();
    metadata.text("tokenizer.chat_template", &template);
}

/// Directory, payloads and number of the tensors of a bf16 safetensors file.
fn tensors(safetensors: &[u8]) -> (Vec<u8>, Vec<u8>, u64) {
    let header_len = u64::from_le_bytes(safetensors[..8].try_into().unwrap()) as usize;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&safetensors[8..8 + header_len]).unwrap();
    let (mut infos, mut data, mut count) = (Vec::new(), Vec::new(), 0);
    for (name, tensor) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        assert_eq!(tensor["dtype"], "BF16");
        let [from, to] = [0, 1].map(|i| 8 + header_len + tensor["data_offsets"][i].as_u64().unwrap() as usize);
        let shape: Vec<u64> = tensor["shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).collect();
        data.resize(data.len().next_multiple_of(32), 0u8);
        infos.extend(string(&gguf_name(name)));
        infos.extend((shape.len() as u32).to_le_bytes());
        infos.extend(shape.iter().rev().flat_map(|d| d.to_le_bytes()));
        infos.extend(if shape.len() == 1 { TENSOR_F32 } else { TENSOR_BF16 }.to_le_bytes());
        infos.extend((data.len() as u64).to_le_bytes());
        let values = &safetensors[from..to];
        if shape.len() == 1 {
            data.extend(values.chunks_exact(2).flat_map(|b| [0, 0, b[0], b[1]]));
        } else {
            data.extend(values);
        }
        count += 1;
    }
    (infos, data, count)
}

fn gguf_name(name: &str) -> String {
    const PARTS: [(&str, &str); 13] = [
        ("model.layers.", "blk."),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
    ];
    PARTS.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}

#[test]
fn the_same_model_as_from_its_checkpoint() {
    let room = Room::new();
    let gguf = room.file("m.gguf", gguf_of_qwen3(&repository("fixtures/models/qwen3")));
    let output = room.path("m.cmf");
    let flags = ["--quant", "f32", "--json"];
    let made = run(command().arg("import-gguf").arg(&gguf).arg("-o").arg(&output).args(flags), b"").ok();
    assert_eq!(made.stderr, "");
    let made = one_object(&made.stdout);
    assert_eq!(keys(&made), ["bytes", "output", "tensors"]);
    assert_eq!(on("verify", &output, &["--json"]).json()["ok"], true);

    let other = room.model("qwen3", "f32");
    let logits = |model: &Path| on("logits", model, &["--ids", "3,1,4,1,5", "--all"]).json();
    assert_eq!(logits(&output), logits(&other));
    let prompt = |model: &Path| on("run", model, &["-p", "Ünïcode, don't 12345 <think>\n", "-n", "1", "--json"]).json();
    assert_eq!(prompt(&output)["prompt_tokens"], prompt(&other)["prompt_tokens"]);
    let decode = |model: &Path| on_with("tokenize", model, &["--decode", "--json"], b"1,300,500,721,65").json();
    assert_eq!(decode(&output), decode(&other));
    let (ours, theirs) = (on("info", &output, &["--json"]).json(), on("info", &other, &["--json"]).json());
    assert_eq!(ours["eos_token_ids"][0], theirs["eos_token_ids"][0]);

    // A cut file is an error and leaves nothing.
    let whole = std::fs::read(&gguf).unwrap();
    for len in [30, whole.len() / 100, whole.len() - 1] {
        let cut = room.file("cut.gguf", &whole[..len]);
        let import = command().arg("import-gguf").arg(&cut).arg("-o").arg(room.path("cut.cmf")).arg("--json").output();
        assert_eq!(import.unwrap().status.code(), Some(1), "{len}");
    }
    assert_eq!(room.names(), ["cut.gguf", "m.cmf", "m.gguf", "qwen3-f32.cmf"]);
}
