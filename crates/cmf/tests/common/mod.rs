//! Material for the tests: small valid files and tools to damage them.

#![allow(dead_code)] // each test program uses its own part

pub mod exercise;

use cortiq_cmf::*;
use serde_json::Value;
use std::path::{Path, PathBuf};

pub fn interop_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop").join(name)
}

pub fn interop(name: &str) -> Vec<u8> {
    std::fs::read(interop_path(name)).unwrap()
}

/// All whole files among the interop data.
pub fn interop_files() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(interop_path(""))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "cmf"))
        .collect();
    files.sort();
    assert!(files.len() >= 12, "only {} files", files.len());
    files
}

pub fn vectors() -> Value {
    serde_json::from_slice(&interop("vectors.json")).unwrap()
}

pub fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

/// The architecture of files A and B.
pub fn arch() -> ModelArch {
    ModelArch {
        arch_name: "vec".into(),
        hidden_size: 8,
        intermediate_size: 40,
        num_layers: 2,
        num_attention_heads: 3,
        num_kv_heads: 1,
        head_dim: 4,
        vocab_size: 10,
        layer_types: vec![LayerType::FullAttention; 2],
        rms_norm_eps: 0.0001,
        max_position_embeddings: 64,
        ..ModelArch::default()
    }
}

pub fn header() -> Header {
    Header::new(arch(), QuantType::F32)
}

/// The masks of file B.
pub fn masks() -> MaskCatalogue {
    let shape = MaskShape::from(&arch());
    let mut general = Mask::new(0, "general", shape);
    general.sparsity = 0.5;
    general.priority = MaskPriority::Fallback;
    for neuron in [0, 1, 39] {
        assert!(general.set_neuron(0, neuron, true));
    }
    assert!(general.set_neuron(1, 32, true));
    for (layer, head) in [(0, 0), (0, 2), (1, 1)] {
        assert!(general.set_head(layer, head, true));
    }
    assert!(general.set_layer(0, true) && general.set_layer(1, true));
    let mut second = Mask::new(7, "m7", shape);
    second.sparsity = 0.25;
    assert!(second.set_neuron(0, 5, true));
    assert!(second.set_head(0, 0, true));
    assert!(second.set_layer(0, true));
    MaskCatalogue { default_task: "general".into(), masks: vec![general, second] }
}

pub fn plan(name: &str, dtype: Dtype, shape: &[u32]) -> TensorPlan {
    TensorPlan { name: name.into(), dtype, shape: shape.to_vec() }
}

/// The tensors of files A and B.
pub fn two_tensors() -> Vec<(TensorPlan, Vec<u8>)> {
    let floats = [1f32, 2.0, 3.0, 4.0];
    vec![
        (plan("a.weight", Dtype::F32, &[2, 2]), floats.iter().flat_map(|v| v.to_le_bytes()).collect()),
        (plan("n.weight", Dtype::F16, &[3]), unhex("003c004000c0")),
    ]
}

/// One tensor of every dtype, a scalar, an empty one and a skill's.
pub fn all_dtypes() -> Vec<(TensorPlan, Vec<u8>)> {
    let vectors = vectors();
    let vector = |name: &str| {
        let all = vectors["dtype"].as_array().unwrap();
        let found = all.iter().find(|v| v["name"] == name).unwrap();
        unhex(found["payload"].as_str().unwrap())
    };
    // Two tiles of zeros with scale 1, entries in columns 4, 9 of row 0 and 31 of row 1.
    let tile = "003c00000000000000";
    let q1t = format!("{tile}{tile}000000000200000003000000040000420900003c1f0000be");
    let q1s = "4838526ba5d602000000030000000041070000000042";
    let mut tensors = two_tensors();
    tensors.extend([
        (plan("t.scalar", Dtype::F32, &[]), vec![0, 0, 128, 63]),
        (plan("t.empty", Dtype::F32, &[0, 5]), vec![]),
        (plan("t.bf16", Dtype::Bf16, &[2]), unhex("803f00c0")),
        (plan("t.q8_row", Dtype::Q8Row, &[2, 8]), vector("q8_row_2x8")),
        (plan("t.q8_2f", Dtype::Q8_2f, &[2, 4]), vector("q8_2f_2x4")),
        (plan("t.q4_block", Dtype::Q4Block, &[1, 34]), vector("q4_block_1x34")),
        (plan("t.q4_tiled", Dtype::Q4Tiled, &[1, 32]), vector("q4_tiled_1x32")),
        (plan("t.vbit", Dtype::Vbit, &[2, 32]), vector("vbit_2x32")),
        (plan("t.vbit_ro", Dtype::VbitRo, &[2, 32]), vector("vbit_ro_2x32")),
        (plan("t.q1", Dtype::Q1, &[1, 32]), vector("q1_1x32")),
        (plan("t.q1s", Dtype::Q1s, &[1, 32]), unhex(q1s)),
        (plan("t.q1t", Dtype::Q1t, &[2, 32]), unhex(&q1t)),
        (plan("skill.s1.n.weight", Dtype::F16, &[3]), unhex("000000000000")),
    ]);
    tensors
}

/// Writes a file with the crate's writer and returns its bytes.
pub fn written(header: Header, tensors: &[(TensorPlan, Vec<u8>)], sections: Sections, digests: bool) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.cmf");
    write_file(&path, header, tensors, sections, digests);
    std::fs::read(path).unwrap()
}

pub fn write_file(
    path: &Path,
    header: Header,
    tensors: &[(TensorPlan, Vec<u8>)],
    sections: Sections,
    digests: bool,
) -> WriteSummary {
    let options = WriteOptions { digests, overwrite: false };
    let plan = tensors.iter().map(|(plan, _)| plan.clone()).collect();
    let mut writer = CmfWriter::create(path, header, plan, sections, options).unwrap();
    for (_, payload) in tensors {
        writer.write_tensor(payload).unwrap();
    }
    writer.finish().unwrap()
}

/// A header that uses every key.
pub fn rich_header() -> Header {
    let mut header = header();
    header.quant_type = QuantType::Vbit;
    let arch = &mut header.arch;
    arch.num_attention_heads = 4;
    arch.norm_style = NormStyle::Gemma;
    arch.tie_word_embeddings = true;
    arch.partial_rotary_factor = 0.25;
    arch.hidden_act = "gelu_tanh".into();
    arch.embed_multiplier = 2.5;
    arch.query_pre_attn_scalar = Some(256.0);
    arch.sliding_window = Some(16);
    arch.sliding_window_pattern = Some(6);
    arch.rope_local_base_freq = Some(10_000.0);
    arch.global_head_dim = Some(8);
    arch.num_global_kv_heads = Some(2);
    arch.global_partial_rotary_factor = Some(0.5);
    arch.final_logit_softcapping = Some(30.0);
    arch.attn_v_norm = true;
    arch.mtp = Some(Mtp { num_layers: 1, share_lm_head: true, share_embed: false });
    arch.moe = Some(Moe {
        num_experts: 8,
        top_k: 2,
        moe_intermediate_size: 16,
        norm_topk_prob: true,
        shared_expert_intermediate_size: Some(24),
        router_sigmoid: true,
        routed_scaling_factor: Some(2.5),
        n_group: Some(4),
        topk_group: Some(2),
        norm_topk_eps: Some(1e-20),
    });
    arch.linear_core = Some(LinearCore { kind: "vmf_phase".into(), num_heads: 2, nphase: Some(4), value_head_dim: 8 });
    arch.linear_conv_kernel_dim = Some(4);
    arch.linear_num_key_heads = Some(2);
    arch.linear_num_value_heads = Some(4);
    arch.linear_key_head_dim = Some(8);
    arch.linear_value_head_dim = Some(8);
    arch.rope_scaling = Some(RopeScaling::Yarn {
        factor: 4.0,
        original_max_position_embeddings: 32,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
        attention_factor: Some(1.1),
        mscale: Some(1.0),
        mscale_all_dim: Some(1.0),
    });
    arch.sliding_layers = Some(vec![true, false]);
    arch.attn_logit_softcapping = Some(50.0);
    arch.rope_layers = Some(vec![true, false]);
    arch.rope_interleaved = true;
    arch.mla =
        Some(Mla { q_lora_rank: Some(8), kv_lora_rank: 4, qk_nope_head_dim: 4, qk_rope_head_dim: 2, v_head_dim: 4 });
    header.provenance = Some(sorted_json(serde_json::json!({"tool": "test", "source_model": "none"})));
    header.tokenizer_config = Some(TokenizerConfig {
        chat_template: Some("{{ messages }}".into()),
        eos_token_ids: vec![2, 3],
        bos_token_id: Some(1),
        pad_token_id: Some(0),
    });
    header.skills = vec![SkillRecord {
        id: "s1".into(),
        name: Some("one".into()),
        layers: vec![0, 1],
        selection: Some(SkillSelection {
            metric: "mse".into(),
            phi_layer: 1,
            mean: "AAAAAAAAAAAAAAAAAAAAAA==".into(),
            basis: "AAAAAAAAAAAAAAAAAAAAAA==".into(),
            rank: 1,
        }),
        input_mask_task: Some("m7".into()),
        quality: Some(serde_json::json!({"ppl": 1.5})),
    }];
    header.shard = Some(ShardInfo { no: 1, count: 1 });
    header.calibration = Some(Calibration { temperature: 1.25, ece_before: Some(0.1), ece_after: Some(0.01) });
    header.generation = Some(GenerationDefaults {
        temperature: Some(0.7),
        top_p: Some(0.9),
        min_p: Some(0.05),
        repetition_penalty: Some(1.1),
        top_k: Some(40),
        do_sample: Some(true),
    });
    header.extensions = KNOWN_EXTENSIONS.iter().map(|name| (*name).to_owned()).collect();
    header
}

/// Masks for [`rich_header`], which has one head more than file B.
pub fn rich_masks() -> MaskCatalogue {
    let shape = MaskShape::from(&rich_header().arch);
    let mut masks = masks();
    for mask in &mut masks.masks {
        let mut wider = Mask::new(mask.task_id, &mask.name, shape);
        wider.description = Some("text".into());
        wider.sparsity = mask.sparsity;
        wider.parent = Some("general".into());
        wider.quality = Some(MaskQuality {
            metric: "ppl".into(),
            value: 9.5,
            baseline_dense: Some(9.25),
            n_samples: Some(100),
            dataset_sha256: Some("00".into()),
        });
        wider.priority = MaskPriority::Primary;
        for layer in 0..2 {
            for neuron in 0..40 {
                wider.set_neuron(layer, neuron, mask.neuron(layer, neuron));
            }
            for head in 0..3 {
                wider.set_head(layer, head, mask.head(layer, head));
            }
            wider.set_layer(layer, mask.layer(layer));
        }
        *mask = wider;
    }
    masks
}

/// A file with everything: every header key, every dtype, every section, digests.
pub fn rich_file() -> Vec<u8> {
    let sections = Sections { masks: Some(rich_masks()), vocab: Some(br#"{"model":{"vocab":{}}}"#.to_vec()) };
    written(rich_header(), &all_dtypes(), sections, true)
}

// ---- damage --------------------------------------------------------------------------

pub fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

pub fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Place of a section's offset in the envelope; its length follows.
pub fn field_of(section: Section) -> usize {
    let position = Section::ALL.iter().position(|s| *s == section).unwrap();
    0x10 + 16 * position
}

/// Offset and length of a section.
pub fn span(file: &[u8], section: Section) -> (usize, usize) {
    let at = field_of(section);
    (get_u64(file, at) as usize, get_u64(file, at + 8) as usize)
}

pub fn section(file: &[u8], which: Section) -> &[u8] {
    let (offset, len) = span(file, which);
    &file[offset..offset + len]
}

/// Puts new bytes for a section at the end of the file and points the envelope there.
pub fn replace(file: &mut Vec<u8>, which: Section, bytes: &[u8]) {
    let offset = if which == Section::Data { file.len().next_multiple_of(4096) } else { file.len() };
    file.resize(offset, 0);
    file.extend_from_slice(bytes);
    let at = field_of(which);
    put(file, at, &(offset as u64).to_le_bytes());
    put(file, at + 8, &(bytes.len() as u64).to_le_bytes());
}

/// The file with its header JSON changed.
pub fn edit_header(file: &[u8], edit: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut json: Value = serde_json::from_slice(section(file, Section::Header)).unwrap();
    edit(&mut json);
    let mut file = file.to_vec();
    replace(&mut file, Section::Header, &serde_json::to_vec(&json).unwrap());
    file
}

/// The file with the description of its masks changed.
pub fn edit_masks(file: &[u8], edit: impl Fn(&mut Value)) -> Vec<u8> {
    let old = section(file, Section::Masks);
    let meta_len = get_u32(old, 4) as usize;
    let mut meta: Value = serde_json::from_slice(&old[8..8 + meta_len]).unwrap();
    let blobs: Vec<Vec<u8>> = meta["masks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mask| {
            let at = mask["blob_off"].as_u64().unwrap() as usize;
            old[at..at + mask["blob_len"].as_u64().unwrap() as usize].to_vec()
        })
        .collect();
    // Far enough behind the description, whatever the edit makes of it.
    let mut new = vec![0; 4096];
    for (i, blob) in blobs.iter().enumerate() {
        meta["masks"][i]["blob_off"] = new.len().into();
        new.extend_from_slice(blob);
        new.resize(new.len().next_multiple_of(8), 0);
    }
    edit(&mut meta);
    let meta = serde_json::to_vec(&meta).unwrap();
    put(&mut new, 0, &old[..4]);
    put(&mut new, 4, &(meta.len() as u32).to_le_bytes());
    put(&mut new, 8, &meta);
    let mut file = file.to_vec();
    replace(&mut file, Section::Masks, &new);
    file
}

/// Place of a tensor's record in the file.
pub fn record_at(file: &[u8], name: &str) -> usize {
    let index = CmfFile::from_bytes(file.to_vec()).unwrap().find(name).unwrap();
    span(file, Section::Directory).0 + 16 + 56 * index
}

/// Place of a tensor's payload in the file.
pub fn payload_at(file: &[u8], name: &str) -> usize {
    let record = record_at(file, name);
    span(file, Section::Data).0 + get_u64(file, record + 32) as usize
}
