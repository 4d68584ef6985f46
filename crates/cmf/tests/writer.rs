//! The writer, and what it writes when read back.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a failed expectation fails the test

mod common;
use common::*;
use cortiq_cmf::*;
use std::path::Path;

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_with_everything_reads_back() {
    let bytes = rich_file();
    let file = CmfFile::from_bytes(bytes.clone()).unwrap();
    let mut header = file.header().clone();
    assert!(header.section_hashes.take().is_some());
    assert!(header.digests.take().is_some());
    assert_eq!(header, rich_header());
    assert_eq!(file.masks(), Some(&rich_masks()));
    for (i, (plan, payload)) in all_dtypes().iter().enumerate() {
        let info = &file.tensors()[i];
        assert_eq!((&info.name, info.dtype, &info.shape), (&plan.name, plan.dtype, &plan.shape));
        assert_eq!(file.data(i).unwrap(), payload.as_slice());
        assert_eq!(info.hash, hash64(payload));
    }
    let all = Dtype::ALL.iter().all(|d| file.tensors().iter().any(|t| t.dtype == *d));
    assert!(all, "a dtype is missing in the test file");
    assert_eq!(file.features(), FEATURE_TENSOR_DIR | FEATURE_BINARY_MASKS | FEATURE_QUANT_2F | FEATURE_EXTENSIONS);
    let report = file.verify();
    assert!(report.ok, "{:?}", report.problems);
    // Directory, masks, vocabulary, index, tensors; the header has a hash64 only.
    assert_eq!(report.digests_checked, 4 + file.tensors().len());
    assert_eq!(report.hashes_checked, 5 + file.tensors().len());
    exercise::exercise(&file);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("copy.cmf");
    let options = WriteOptions { digests: true, overwrite: false };
    file.write_to(&path, file.header().clone(), options).unwrap();
    assert!(std::fs::read(path).unwrap() == bytes);
}

/// Keys in the order of §3, additions last.
#[test]
fn keys_have_their_order() {
    let json = String::from_utf8(rich_header().to_json().unwrap()).unwrap();
    let keys = [
        "format",
        "version",
        "arch",
        "arch_name",
        "hidden_size",
        "intermediate_size",
        "num_layers",
        "num_attention_heads",
        "num_kv_heads",
        "head_dim",
        "vocab_size",
        "layer_types",
        "rms_norm_eps",
        "norm_style",
        "rope_theta",
        "tie_word_embeddings",
        "partial_rotary_factor",
        "hidden_act",
        "embed_multiplier",
        "query_pre_attn_scalar",
        "sliding_window",
        "sliding_window_pattern",
        "rope_local_base_freq",
        "global_head_dim",
        "num_global_kv_heads",
        "global_partial_rotary_factor",
        "final_logit_softcapping",
        "attn_v_norm",
        "mtp",
        "share_lm_head",
        "share_embed",
        "moe",
        "num_experts",
        "top_k",
        "moe_intermediate_size",
        "norm_topk_prob",
        "shared_expert_intermediate_size",
        "router_sigmoid",
        "routed_scaling_factor",
        "linear_core",
        "kind",
        "num_heads",
        "nphase",
        "value_head_dim",
        "max_position_embeddings",
        "linear_conv_kernel_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "rope_scaling",
        "sliding_layers",
        "attn_logit_softcapping",
        "rope_layers",
        "rope_interleaved",
        "mla",
        "quant_type",
        "provenance",
        "source_model",
        "tool",
        "tokenizer_config",
        "chat_template",
        "eos_token_ids",
        "bos_token_id",
        "pad_token_id",
        "skills",
        "id",
        "name",
        "layers",
        "selection",
        "metric",
        "phi_layer",
        "mean",
        "basis",
        "rank",
        "input_mask_task",
        "quality",
        "shard",
        "no",
        "count",
        "calibration",
        "temperature",
        "ece_before",
        "ece_after",
        "generation",
        "extensions",
    ];
    let mut rest = json.as_str();
    for key in keys {
        let quoted = format!("\"{key}\":");
        let at = rest.find(&quoted);
        rest = &rest[at.unwrap_or_else(|| panic!("{key} is not where it belongs")) + quoted.len()..];
    }
    assert!(json.contains(r#""rope_scaling":{"type":"yarn","factor":4.0,"#));
}

/// §3.2: the smallest header, and floats in their shortest form.
#[test]
fn the_smallest_header_is_accepted() {
    let json = r#"{"version":2,"quant_type":"F32","unknown":[1],"arch":{"arch_name":"x",
        "hidden_size":8,"intermediate_size":8,"num_layers":1,"num_attention_heads":1,
        "num_kv_heads":1,"head_dim":8,"vocab_size":8,"layer_types":["ShortConv"],
        "rms_norm_eps":0.000001,"max_position_embeddings":8,"moe":null}}"#;
    let header = Header::from_json(json.as_bytes()).unwrap();
    header.check().unwrap();
    assert_eq!(header.arch.rope_theta, 10_000.0);
    assert_eq!(header.arch.hidden_act, "silu");
    let out = String::from_utf8(header.to_json().unwrap()).unwrap();
    assert!(out.contains(r#""rms_norm_eps":1e-6,"norm_style":"qwen","rope_theta":10000.0,"#), "{out}");
    let value: serde_json::Value = serde_json::from_str(json).unwrap();
    for key in value["arch"].as_object().unwrap().keys() {
        let mut less = value.clone();
        less["arch"].as_object_mut().unwrap().remove(key);
        let bytes = serde_json::to_vec(&less).unwrap();
        assert_eq!(Header::from_json(&bytes).is_err(), key != "moe", "{key}");
    }
    for spelling in ["full_attention", "fullattention"] {
        let other = json.replace("ShortConv", spelling);
        assert!(matches!(Header::from_json(other.as_bytes()), Err(CmfError::HeaderJson(_))));
    }
}

#[test]
fn rope_scaling_has_the_agreed_spelling() {
    let cases = [
        (r#"{"type":"linear","factor":2.0}"#, RopeScaling::Linear { factor: 2.0 }),
        (
            r#"{"type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192}"#,
            RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_position_embeddings: 8192,
            },
        ),
        (
            r#"{"type":"yarn","factor":4.0,"original_max_position_embeddings":32768,"beta_fast":32.0,"beta_slow":1.0,"truncate":true}"#,
            RopeScaling::Yarn {
                factor: 4.0,
                original_max_position_embeddings: 32_768,
                beta_fast: 32.0,
                beta_slow: 1.0,
                truncate: true,
                attention_factor: None,
                mscale: None,
                mscale_all_dim: None,
            },
        ),
        (
            r#"{"type":"longrope","short_factor":[1.0],"long_factor":[2.5],"original_max_position_embeddings":4096,"attention_factor":1.5}"#,
            RopeScaling::LongRope {
                short_factor: vec![1.0],
                long_factor: vec![2.5],
                original_max_position_embeddings: 4096,
                attention_factor: Some(1.5),
            },
        ),
    ];
    for (json, scaling) in cases {
        assert_eq!(serde_json::to_string(&scaling).unwrap(), json);
        assert_eq!(serde_json::from_str::<RopeScaling>(json).unwrap(), scaling);
    }
}

#[test]
fn an_empty_model_and_empty_sections_are_written() {
    let sections = Sections { masks: Some(MaskCatalogue::default()), vocab: Some(Vec::new()) };
    let bytes = written(header(), &[], sections, true);
    assert_eq!(bytes.len(), 4096);
    let file = CmfFile::from_bytes(bytes).unwrap();
    assert!(file.tensors().is_empty());
    assert!(file.masks().is_none() && file.vocab().is_none() && file.sparse_index().is_none());
    assert!(file.header().section_hashes.is_none());
    assert!(file.verify().ok);
}

#[test]
fn section_hashes_are_kept_without_sections() {
    let mut header = header();
    let hashes = SectionHashes { masks: None, vocab: None, index: None };
    header.section_hashes = Some(hashes.clone());
    let bytes = written(header, &two_tensors(), Sections::default(), false);
    let file = CmfFile::from_bytes(bytes).unwrap();
    assert_eq!(file.header().section_hashes, Some(hashes));
}

#[test]
fn payloads_are_aligned_in_every_mode() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.cmf");
    std::fs::write(&path, rich_file()).unwrap();
    for file in
        [CmfFile::open(&path).unwrap(), CmfFile::open_owned(&path).unwrap(), CmfFile::from_bytes(rich_file()).unwrap()]
    {
        for i in 0..file.tensors().len() {
            assert_eq!(file.data(i).unwrap().as_ptr().align_offset(64), 0);
        }
    }
}

#[test]
fn existing_output_is_kept_unless_asked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.cmf");
    std::fs::write(&path, b"mine").unwrap();
    let create = |overwrite| {
        let options = WriteOptions { digests: false, overwrite };
        CmfWriter::create(&path, header(), vec![], Sections::default(), options)
    };
    assert!(matches!(create(false), Err(CmfError::OutputExists(_))));
    assert_eq!(names(dir.path()), ["x.cmf"]);
    let writer = create(true).unwrap();
    // Untouched until the last moment.
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    writer.finish().unwrap();
    assert_eq!(names(dir.path()), ["x.cmf"]);
    CmfFile::open(&path).unwrap();

    // Taken while it was being written.
    let late = dir.path().join("late.cmf");
    let writer = CmfWriter::create(&late, header(), vec![], Sections::default(), WriteOptions::default()).unwrap();
    std::fs::write(&late, b"first").unwrap();
    assert!(matches!(writer.finish(), Err(CmfError::OutputExists(_))));
    assert_eq!(std::fs::read(&late).unwrap(), b"first");
    assert_eq!(names(dir.path()), ["late.cmf", "x.cmf"]);
}

#[test]
fn nothing_is_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.cmf");
    let create = || {
        let plan = two_tensors().into_iter().map(|(plan, _)| plan).collect();
        let options = WriteOptions::default();
        CmfWriter::create(&path, header(), plan, Sections::default(), options).unwrap()
    };
    let mut writer = create();
    assert_eq!(names(dir.path()), ["x.cmf.partial"]);
    writer.write_tensor(&two_tensors()[0].1).unwrap();
    drop(writer);
    assert!(names(dir.path()).is_empty());

    let mut writer = create();
    writer.write_tensor(&two_tensors()[0].1).unwrap();
    let error = writer.finish().unwrap_err();
    assert!(matches!(error, CmfError::MissingTensors { written: 1, planned: 2 }));
    assert!(names(dir.path()).is_empty());

    // A leftover of a process that was killed is no obstacle, and no byte of it survives.
    std::fs::write(dir.path().join("x.cmf.partial"), vec![0xFF; 9000]).unwrap();
    let mut writer = create();
    // A wrong payload is refused and can be corrected.
    assert!(matches!(writer.write_tensor(&[0; 15]), Err(CmfError::PayloadLength { expected: 16, found: 15, .. })));
    for (_, payload) in two_tensors() {
        writer.write_tensor(&payload).unwrap();
    }
    writer.finish().unwrap();
    assert!(std::fs::read(&path).unwrap() == interop("fileA.cmf"));
    assert_eq!(names(dir.path()), ["x.cmf"]);
}

#[test]
fn a_mapped_file_can_be_overwritten_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.cmf");
    std::fs::write(&path, interop("fileB.cmf")).unwrap();
    let file = CmfFile::open(&path).unwrap();
    let options = WriteOptions { digests: true, overwrite: true };
    file.write_to(&path, file.header().clone(), options).unwrap();
    // The old mapping still shows the old file.
    file.check_length().unwrap();
    assert!(file.verify().ok && file.header().digests.is_none());
    let new = CmfFile::open(&path).unwrap();
    assert!(new.verify().ok && new.header().digests.is_some());
}

/// Every byte that carries meaning is covered by a digest or by the header's own digest.
#[test]
fn verify_finds_every_flipped_byte() {
    let bytes = rich_file();
    let clean = CmfFile::from_bytes(bytes.clone()).unwrap().header_digest();
    let mut flipped = 0;
    for section in [Section::Header, Section::Directory, Section::Data, Section::Masks, Section::Vocab, Section::Index]
    {
        let (offset, len) = span(&bytes, section);
        for at in offset..offset + len {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            let Ok(file) = CmfFile::from_bytes(bad) else {
                flipped += 1;
                continue;
            };
            let report = file.verify();
            let fill = section == Section::Data
                && !file.tensors().iter().any(|t| {
                    let start = offset + t.offset as usize;
                    (start..start + t.nbytes as usize).contains(&at)
                });
            if fill {
                assert!(report.ok);
                continue;
            }
            assert!(!report.ok, "{section:?} byte {at}");
            flipped += 1;
            if section == Section::Header {
                assert_ne!(file.header_digest(), clean);
            } else {
                let both = [Check::Hash64, Check::Blake3];
                for check in both {
                    let found = report.problems.iter().any(|p| p.check == check);
                    assert!(found, "{section:?} byte {at}: {check:?}");
                }
            }
        }
    }
    assert!(flipped > 2000, "{flipped}");
}

/// hash64 does not depend on the order of the 8-byte words; BLAKE3 does.
#[test]
fn digests_see_what_hash64_cannot() {
    let a: Vec<u8> = (0..16).collect();
    let mut b = a.clone();
    b.rotate_left(8);
    assert_eq!(hash64(&a), hash64(&b));
    let tensors = vec![(plan("x", Dtype::F32, &[4]), a.clone())];
    let mut bytes = written(header(), &tensors, Sections::default(), true);
    let at = payload_at(&bytes, "x");
    put(&mut bytes, at, &b);
    let report = CmfFile::from_bytes(bytes).unwrap().verify();
    assert_eq!(report.problems.len(), 1);
    assert_eq!(report.problems[0].check, Check::Blake3);
    assert_eq!(report.problems[0].what, "x");
    assert!(report.problems[0].to_string().contains("blake3"));
}

#[test]
fn large_files_are_verified_in_parallel() {
    let tensors: Vec<_> =
        (0..40u8).map(|i| (plan(&format!("t{i}"), Dtype::F32, &[50_000]), vec![i; 200_000])).collect();
    let mut bytes = written(header(), &tensors, Sections::default(), true);
    for name in ["t39", "t3"] {
        let at = payload_at(&bytes, name);
        bytes[at] ^= 1;
    }
    let report = CmfFile::from_bytes(bytes).unwrap().verify();
    let what: Vec<&str> = report.problems.iter().map(|p| p.what.as_str()).collect();
    assert_eq!(what, ["t3", "t3", "t39", "t39"]);
    assert_eq!(report.digests_checked, 41);
    assert!(report.bytes > 8_000_000);
}

#[test]
fn skills_stand_in_for_their_tensors() {
    let file = CmfFile::from_bytes(rich_file()).unwrap();
    let plain = file.find("n.weight");
    assert!(plain.is_some());
    assert_eq!(file.find_with_skill("n.weight", None), plain);
    assert_eq!(file.find_with_skill("n.weight", Some("s2")), plain);
    assert_eq!(file.find_with_skill("n.weight", Some("s1")), file.find("skill.s1.n.weight"));
    assert_ne!(file.find_with_skill("n.weight", Some("s1")), plain);
    assert_eq!(file.find_with_skill("none", Some("s1")), None);
}

#[test]
fn shards_are_joined_whichever_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = |no| dir.path().join(shard_file_name("m", no, 3));
    let tensors = all_dtypes();
    for (no, chunk) in (1..).zip([&tensors[..2], &tensors[2..9], &tensors[9..]]) {
        let mut header = header();
        header.shard = Some(ShardInfo { no, count: 3 });
        let sections = Sections { masks: None, vocab: (no == 1).then(|| b"{}".to_vec()) };
        write_file(&path(no), header, chunk, sections, true);
    }
    for no in 1..=3 {
        for file in [CmfFile::open_sharded(&path(no)).unwrap(), CmfFile::open_sharded_owned(&path(no)).unwrap()] {
            assert_eq!(file.part_count(), 3);
            assert_eq!(file.header().shard, Some(ShardInfo { no: 1, count: 3 }));
            assert_eq!(file.vocab(), Some(&b"{}"[..]));
            assert_eq!(file.tensors().len(), tensors.len());
            for (i, (plan, payload)) in tensors.iter().enumerate() {
                assert_eq!(file.find(&plan.name), Some(i));
                assert_eq!(file.data(i).unwrap(), payload.as_slice());
            }
            let report = file.verify();
            assert!(report.ok, "{:?}", report.problems);
            assert_eq!(report.digests_checked, 3 + 1 + tensors.len());
            file.check_length().unwrap();
        }
    }
    // A single shard is a complete file.
    assert_eq!(CmfFile::open(&path(2)).unwrap().tensors().len(), 7);
    // A damaged payload is found in its shard.
    let mut bytes = std::fs::read(path(3)).unwrap();
    let at = payload_at(&bytes, "t.vbit_ro");
    bytes[at + 2] ^= 1;
    std::fs::write(path(3), bytes).unwrap();
    let report = CmfFile::open_sharded(&path(1)).unwrap().verify();
    assert_eq!(report.problems.len(), 2);
    assert!(report.problems.iter().all(|p| p.part == 2 && p.what == "t.vbit_ro"));
    assert!(report.problems[0].to_string().starts_with("shard 3: t.vbit_ro"));
}

#[test]
fn sorted_json_sorts_at_every_depth() {
    let json = serde_json::json!({"b": [{"d": 1, "c": 2}], "a": null});
    let text = serde_json::to_string(&sorted_json(json)).unwrap();
    assert_eq!(text, r#"{"a":null,"b":[{"c":2,"d":1}]}"#);
}

/// Only the front of a file is read at open: 20 GB of zeros that take no room.
#[test]
fn large_files_open_at_once() {
    const ROW: u32 = 2_500_000_000;
    let nbytes = 8 * u64::from(ROW);
    let second = nbytes.next_multiple_of(64);
    let mut bytes = interop("fileA.cmf");
    let (directory, _) = span(&bytes, Section::Directory);
    put(&mut bytes, directory + 16 + 12, &ROW.to_le_bytes());
    put(&mut bytes, directory + 16 + 40, &nbytes.to_le_bytes());
    put(&mut bytes, directory + 72 + 32, &second.to_le_bytes());
    put(&mut bytes, 0x38, &(second + 6).to_le_bytes());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("large.cmf");
    std::fs::write(&path, bytes).unwrap();
    let handle = std::fs::File::options().write(true).open(&path).unwrap();
    handle.set_len(4096 + second + 6).unwrap();
    let start = std::time::Instant::now();
    let file = CmfFile::open(&path).unwrap();
    let elapsed = start.elapsed();
    assert_eq!(file.data(0).unwrap().len() as u64, nbytes);
    assert!(elapsed.as_millis() < 500, "{elapsed:?}");
}
