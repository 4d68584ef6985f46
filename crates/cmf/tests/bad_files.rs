//! One damaged file or impossible request per rule of docs/cmf-format.md §13, and a check
//! that no error variant was forgotten.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a failed expectation fails the test

mod common;
use common::*;
use cortiq_cmf::*;
use serde_json::json;
use std::path::Path;

/// The list of all variants, which the compiler compares with the enum.
macro_rules! variants {
    ($($variant:ident)*) => {
        const VARIANTS: &[&str] = &[$(stringify!($variant)),*];

        fn variant(error: &CmfError) -> &'static str {
            match error { $(CmfError::$variant { .. } => stringify!($variant)),* }
        }
    };
}

variants! {
    FileNotFound NotARegularFile Io LengthChanged
    FileTooShort InvalidMagic UnsupportedVersion UnsupportedFeature MissingFeature
    SuperfluousFeature EmptySection SectionOutOfBounds DataMisaligned SectionsOverlap
    HeaderTooLarge HeaderJson WrongFormatName WrongHeaderVersion LayerTypesLength
    SlidingLayersLength RopeLayersLength ExpertGroups ZeroSize SizeTooLarge HeadsNotDivisible NotPositive OutOfRange
    TopKTooLarge LongRopeFactors UnknownExtension ExtensionNotListed ShardCoordinates
    DigestAlgorithm DigestFormat DigestCount DigestSection
    DirectoryTooShort DirectoryRecords NamePool SharedNames TooManyDims NameOutOfBounds
    NameNotUtf8 EmptyName DuplicateName UnknownDtype ReservedDtype WrongRank WrongColumns
    ShapeOverflow TensorMisaligned TensorOutOfBounds TensorsOverlap PayloadLength
    PayloadTruncated
    VbitWidth VbitFirstOffset VbitRowSpan Q1sIndexRange Q1sIndexOrder Q1tFirstRowPtr
    Q1tRowPtrOrder Q1tColumnRange Q1tColumnOrder Q1tCode Q1tLastCode Q1tBaseCode
    MasksTooShort MasksMetaOutOfBounds MasksJson MaskCount MaskLength MaskOutOfBounds
    MasksOverlap MaskTailBits MaskNumber IndexTooShort IndexCount IndexEntryOutOfBounds
    IndexRange IndexLimit
    ShardName ShardMismatch
    NoSuchTensor OutputExists NoSuchFolder OutputBusy NameTooLong MissingTensors TooManyTensors
}

/// Expected variant, what was done, what came of it.
type Case = (&'static str, String, CmfError);

/// Collects cases and says at once when a damaged file is accepted.
#[derive(Default)]
struct Cases(Vec<Case>);

impl Cases {
    fn error(&mut self, expected: &'static str, what: impl Into<String>, error: CmfError) {
        self.0.push((expected, what.into(), error));
    }

    fn file(&mut self, expected: &'static str, what: impl Into<String>, bytes: Vec<u8>) {
        let what = what.into();
        match CmfFile::from_bytes(bytes) {
            Ok(_) => panic!("{what}: accepted, should be {expected}"),
            Err(error) => self.error(expected, what, error),
        }
    }

    fn bytes(&mut self, expected: &'static str, at: usize, value: &[u8], base: &[u8]) {
        let mut bytes = base.to_vec();
        put(&mut bytes, at, value);
        self.file(expected, format!("{value:02x?} at {at}"), bytes);
    }

    fn check(self) -> Vec<&'static str> {
        for (expected, what, error) in &self.0 {
            assert_eq!(variant(error), *expected, "{what}: {error}");
            assert!(!error.to_string().is_empty());
        }
        self.0.into_iter().map(|(expected, _, _)| expected).collect()
    }
}

fn envelope_cases() -> Cases {
    let a = interop("fileA.cmf");
    let b = interop("fileB.cmf");
    let mut c = Cases::default();
    for len in [0, 1, 4, 127] {
        c.file("FileTooShort", format!("{len} bytes"), a[..len].to_vec());
    }
    c.bytes("InvalidMagic", 3, &[2], &a);
    c.bytes("UnsupportedVersion", 4, &[1], &a);
    for bit in [3, 4, 5, 15, 17, 31] {
        c.bytes("UnsupportedFeature", 12, &(1u32 << bit | 1).to_le_bytes(), &a);
    }
    c.bytes("MissingFeature", 12, &[0], &a);
    c.bytes("MissingFeature", 12, &[1], &b);
    c.bytes("SuperfluousFeature", 12, &[3], &a);
    c.bytes("SuperfluousFeature", 14, &[1], &a);
    let rich = rich_file();
    for (name, bit) in [("QUANT_2F", FEATURE_QUANT_2F), ("EXTENSIONS", FEATURE_EXTENSIONS)] {
        let bits = get_u32(&rich, 12) & !bit;
        c.bytes("MissingFeature", 12, &bits.to_le_bytes(), &rich);
        match &c.0.last().unwrap().2 {
            CmfError::MissingFeature(found) => assert_eq!(*found, name),
            other => panic!("{other}"),
        }
    }
    c.bytes("EmptySection", 0x18, &[0; 8], &a);
    c.bytes("EmptySection", 0x28, &[0; 8], &a);
    for section in Section::ALL {
        let at = field_of(section);
        let file_len = b.len() as u64;
        for (offset, len) in [(file_len, 1), (u64::MAX, 1), (4096, u64::MAX), (u64::MAX, u64::MAX), (file_len - 1, 2)] {
            let mut field = offset.to_le_bytes().to_vec();
            field.extend(len.to_le_bytes());
            c.bytes("SectionOutOfBounds", at, &field, &b);
        }
    }
    c.bytes("DataMisaligned", 0x30, &4095u64.to_le_bytes(), &a);
    c.bytes("DataMisaligned", 0x30, &4032u64.to_le_bytes(), &a);
    // Header over the envelope, directory over the header, vocabulary inside the masks.
    c.bytes("SectionsOverlap", 0x10, &127u64.to_le_bytes(), &a);
    c.bytes("SectionsOverlap", 0x20, &609u64.to_le_bytes(), &a);
    c.bytes("SectionsOverlap", 0x50, &4200u64.to_le_bytes(), &b);
    c.bytes("SectionsOverlap", 0x30, &0u64.to_le_bytes(), &a);
    c
}

fn header_cases() -> Cases {
    let rich = rich_file();
    let mut c = Cases::default();
    let mut bad = |expected, path: &str, value: serde_json::Value| {
        let what = format!("{path} = {value}");
        let bytes = edit_header(&rich, |header| {
            *header.pointer_mut(path).unwrap_or_else(|| panic!("no {path}")) = value;
        });
        c.file(expected, what, bytes);
    };
    bad("WrongFormatName", "/format", json!("gguf"));
    bad("WrongHeaderVersion", "/version", json!(3));
    bad("LayerTypesLength", "/arch/layer_types", json!([]));
    bad("LayerTypesLength", "/arch/num_layers", json!(3));
    bad("SlidingLayersLength", "/arch/sliding_layers", json!([true]));
    bad("RopeLayersLength", "/arch/rope_layers", json!([true]));
    bad("ExpertGroups", "/arch/moe/n_group", json!(3));
    let sizes = [
        "hidden_size",
        "num_attention_heads",
        "num_kv_heads",
        "head_dim",
        "vocab_size",
        "sliding_window",
        "sliding_window_pattern",
        "global_head_dim",
        "num_global_kv_heads",
        "linear_conv_kernel_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_core/num_heads",
        "linear_core/nphase",
        "linear_core/value_head_dim",
        "moe/num_experts",
        "moe/top_k",
        "moe/moe_intermediate_size",
        "mtp/num_layers",
        "mla/q_lora_rank",
        "mla/kv_lora_rank",
        "mla/qk_nope_head_dim",
        "mla/qk_rope_head_dim",
        "mla/v_head_dim",
        "moe/n_group",
        "moe/topk_group",
        "rope_scaling/original_max_position_embeddings",
    ];
    for key in sizes {
        bad("ZeroSize", &format!("/arch/{key}"), json!(0));
        bad("SizeTooLarge", &format!("/arch/{key}"), json!(u64::from(u32::MAX)));
    }
    for key in ["num_layers", "intermediate_size", "max_position_embeddings", "moe/shared_expert_intermediate_size"] {
        bad("SizeTooLarge", &format!("/arch/{key}"), json!(u64::from(u32::MAX)));
    }
    bad("HeadsNotDivisible", "/arch/num_kv_heads", json!(3));
    bad("HeadsNotDivisible", "/arch/num_kv_heads", json!(8));
    bad("HeadsNotDivisible", "/arch/num_global_kv_heads", json!(3));
    for key in [
        "rms_norm_eps",
        "rope_theta",
        "query_pre_attn_scalar",
        "rope_local_base_freq",
        "final_logit_softcapping",
        "attn_logit_softcapping",
        "moe/norm_topk_eps",
        "rope_scaling/factor",
        "rope_scaling/beta_fast",
        "rope_scaling/beta_slow",
    ] {
        bad("NotPositive", &format!("/arch/{key}"), json!(0.0));
        bad("NotPositive", &format!("/arch/{key}"), json!(-1e-6));
    }
    for key in ["attention_factor", "mscale", "mscale_all_dim"] {
        bad("NotPositive", &format!("/arch/rope_scaling/{key}"), json!(-1.0));
    }
    bad("NotPositive", "/calibration/temperature", json!(0.0));
    bad("HeaderJson", "/calibration/temperature", json!(1e39));
    bad("NotPositive", "/generation/repetition_penalty", json!(0.0));
    bad("HeaderJson", "/calibration/ece_after", json!(1e39));
    bad("OutOfRange", "/generation/temperature", json!(-0.5));
    bad("OutOfRange", "/generation/top_p", json!(1.5));
    bad("OutOfRange", "/generation/min_p", json!(-0.1));
    bad("OutOfRange", "/arch/partial_rotary_factor", json!(1.5));
    bad("OutOfRange", "/arch/global_partial_rotary_factor", json!(-0.5));
    bad("HeaderJson", "/arch/embed_multiplier", json!(1e39));
    bad("HeaderJson", "/arch/moe/routed_scaling_factor", json!(1e39));
    bad("TopKTooLarge", "/arch/moe/top_k", json!(9));
    for (short, long) in [(json!([]), json!([])), (json!([1.0]), json!([1.0, 2.0]))] {
        let scaling = json!({"type": "longrope", "short_factor": short, "long_factor": long,
            "original_max_position_embeddings": 8});
        bad("LongRopeFactors", "/arch/rope_scaling", scaling);
    }
    let scaling = json!({"type": "longrope", "short_factor": [0.0], "long_factor": [1.0],
        "original_max_position_embeddings": 8});
    bad("NotPositive", "/arch/rope_scaling", scaling);
    let scaling = json!({"type": "llama3", "factor": 8.0, "low_freq_factor": 0.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8});
    bad("NotPositive", "/arch/rope_scaling", scaling);
    bad("NotPositive", "/arch/rope_scaling", json!({"type": "linear", "factor": 0.0}));
    bad("UnknownExtension", "/extensions", json!(["rope_scaling", "sliding_layers", "tides"]));
    bad("ExtensionNotListed", "/extensions", json!(["sliding_layers"]));
    bad("ExtensionNotListed", "/extensions", json!(["rope_scaling"]));
    for (no, count) in [(0, 1), (2, 1), (1, 0), (1, 100_000)] {
        bad("ShardCoordinates", "/shard", json!({"no": no, "count": count}));
    }
    bad("DigestAlgorithm", "/digests/algorithm", json!("sha256"));
    bad("DigestFormat", "/digests/directory", json!("00"));
    bad("DigestFormat", "/digests/tensors/0", json!("g".repeat(64)));
    bad("DigestFormat", "/digests/tensors/1", json!("A".repeat(64)));
    bad("DigestFormat", "/digests/vocab", json!("é".repeat(32)));
    bad("DigestCount", "/digests/tensors", json!([]));
    bad("DigestSection", "/digests/masks", json!(null));
    bad("DigestSection", "/digests/vocab", json!(null));
    bad("DigestSection", "/digests/index", json!(null));
    for (path, value) in [
        ("/version", json!(-2)),
        ("/arch/hidden_size", json!(1.5)),
        ("/arch/hidden_size", json!(null)),
        ("/arch/layer_types/0", json!("full_attention")),
        ("/arch/norm_style", json!("Gemma")),
        ("/arch/rope_scaling/type", json!("dynamic")),
        ("/quant_type", json!("Q4_TILED")),
        ("/skills/0/selection/rank", json!(null)),
        ("", json!([])),
    ] {
        bad("HeaderJson", path, value);
    }
    header_text_cases(&rich, &mut c);
    c
}

fn header_text_cases(rich: &[u8], c: &mut Cases) {
    let deep = "[".repeat(100_000);
    for text in [&b"{"[..], b"\xff", b"{\"version\":2,\"version\":2}", deep.as_bytes()] {
        let mut bytes = rich.to_vec();
        replace(&mut bytes, Section::Header, text);
        c.file("HeaderJson", format!("header of {} bytes", text.len()), bytes);
    }
    // A file with a hole: 256 MiB of zeros that take no room.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hole.cmf");
    let mut bytes = interop("fileA.cmf");
    let (offset, len) = (bytes.len() as u64, MAX_HEADER_LEN + 1);
    put(&mut bytes, 0x10, &offset.to_le_bytes());
    put(&mut bytes, 0x18, &len.to_le_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(offset + len).unwrap();
    c.error("HeaderTooLarge", "hole", CmfFile::open(&path).unwrap_err());
}

fn directory_cases() -> Cases {
    let a = interop("fileA.cmf");
    let mut c = Cases::default();
    for len in [1, 15] {
        let mut bytes = a.clone();
        replace(&mut bytes, Section::Directory, &[0; 16][..len]);
        c.file("DirectoryTooShort", format!("{len} bytes"), bytes);
    }
    let dir = span(&a, Section::Directory).0;
    for count in [3, 1 << 58, (1 << 62) + 2, u64::MAX, u64::MAX / 56 + 2] {
        c.bytes("DirectoryRecords", dir, &u64::to_le_bytes(count), &a);
    }
    for pool in [0, 127, 145, u64::MAX] {
        c.bytes("NamePool", dir + 8, &u64::to_le_bytes(pool), &a);
    }
    let (first, second) = (dir + 16, dir + 72);
    // The pool of file A has two names of eight bytes.
    c.bytes("SharedNames", second + 4, &[8, 0], &{
        let mut bytes = a.clone();
        put(&mut bytes, first + 4, &[16, 0]);
        bytes
    });
    c.bytes("TooManyDims", first + 7, &[7], &a);
    c.bytes("TooManyDims", first + 7, &[255], &a);
    c.bytes("NameOutOfBounds", second + 4, &[9, 0], &a);
    c.bytes("NameOutOfBounds", second, &17u32.to_le_bytes(), &a);
    c.bytes("NameOutOfBounds", second, &[255; 4], &a);
    c.bytes("NameNotUtf8", dir + 128, &[0xC0], &a);
    c.bytes("EmptyName", first + 4, &[0, 0], &a);
    c.bytes("DuplicateName", second, &[0], &a);
    c.bytes("UnknownDtype", first + 6, &[15], &a);
    c.bytes("UnknownDtype", first + 6, &[255], &a);
    for id in 5..8 {
        c.bytes("ReservedDtype", first + 6, &[id], &a);
    }
    c.bytes("TensorMisaligned", second + 32, &[32], &a);
    c.bytes("TensorOutOfBounds", second + 32, &128u64.to_le_bytes(), &a);
    c.bytes("TensorOutOfBounds", second + 32, &(u64::MAX - 63).to_le_bytes(), &a);
    c.bytes("TensorOutOfBounds", second + 40, &[255; 8], &a);
    c.bytes("TensorsOverlap", second + 32, &[0], &a);
    c.bytes("PayloadLength", second + 40, &[4], &a);
    c.bytes("PayloadLength", first + 8, &[3], &a);
    let rich = rich_file();
    for name in ["t.q8_row", "t.q8_2f", "t.vbit", "t.vbit_ro", "t.q1t"] {
        for ndim in [0, 1, 3] {
            c.bytes("WrongRank", record_at(&rich, name) + 7, &[ndim], &rich);
        }
    }
    for (name, cols) in [("t.vbit", 31u32), ("t.vbit", 0), ("t.vbit_ro", 33), ("t.q1t", 0), ("t.q1t", 65_568)] {
        let at = record_at(&rich, name) + 12;
        c.bytes("WrongColumns", at, &cols.to_le_bytes(), &rich);
    }
    let huge = [255; 8];
    c.bytes("ShapeOverflow", first + 8, &huge, &a);
    c.bytes(
        "ShapeOverflow",
        record_at(&rich, "t.q4_block") + 7,
        &{
            let mut record = vec![6];
            record.extend([255; 24]);
            record
        },
        &rich,
    );
    c
}

fn payload_cases() -> Cases {
    let rich = rich_file();
    let mut c = Cases::default();
    let at = |name| payload_at(&rich, name);
    let nbytes = |name| record_at(&rich, name) + 40;

    // vbit_ro [2, 32]: 2 widths, 4 bytes of scales, 3 offsets, rows of 24 and 12 bytes.
    for bits in [0, 1, 2, 7, 9, 255] {
        c.bytes("VbitWidth", at("t.vbit") + 1, &[bits], &rich);
        c.bytes("VbitWidth", at("t.vbit_ro"), &[bits], &rich);
    }
    c.bytes("VbitFirstOffset", at("t.vbit_ro") + 6, &[1], &rich);
    c.bytes("VbitRowSpan", at("t.vbit_ro") + 10, &[23], &rich);
    c.bytes("VbitRowSpan", at("t.vbit_ro") + 14, &[255; 4], &rich);
    c.bytes("VbitRowSpan", at("t.vbit_ro") + 14, &[0], &rich);
    c.bytes("PayloadLength", at("t.vbit"), &[5], &rich);
    c.bytes("PayloadLength", nbytes("t.vbit_ro"), &[53], &rich);
    for (name, len) in
        [("t.vbit", 5), ("t.vbit_ro", 17), ("t.vbit_ro", 0), ("t.q1s", 9), ("t.q1s", 3), ("t.q1t", 29), ("t.q1t", 3)]
    {
        c.bytes("PayloadTruncated", nbytes(name), &[len], &rich);
    }
    // Rows without bytes for them.
    for name in ["t.vbit", "t.vbit_ro", "t.q1t"] {
        c.bytes("PayloadTruncated", record_at(&rich, name) + 8, &[255; 4], &rich);
    }
    c.bytes("PayloadTruncated", record_at(&rich, "t.q1s") + 8, &[255; 4], &rich);

    // q1s [1, 32]: base of 6 bytes, count 2, entries (3, _) and (7, _).
    c.bytes("PayloadLength", at("t.q1s") + 6, &[3], &rich);
    c.bytes("PayloadLength", at("t.q1s") + 6, &[255; 4], &rich);
    c.bytes("PayloadLength", nbytes("t.q1s"), &[21], &rich);
    c.bytes("Q1sIndexRange", at("t.q1s") + 16, &[32], &rich);
    c.bytes("Q1sIndexRange", at("t.q1s") + 10, &[255; 4], &rich);
    c.bytes("Q1sIndexOrder", at("t.q1s") + 16, &[3], &rich);
    c.bytes("Q1sIndexOrder", at("t.q1s") + 16, &[0], &rich);

    // q1t [2, 32]: two tiles of 9, row_ptr 0 2 3 at 18, entries at 30.
    c.bytes("Q1tFirstRowPtr", at("t.q1t") + 18, &[1], &rich);
    c.bytes("Q1tRowPtrOrder", at("t.q1t") + 22, &[4], &rich);
    c.bytes("Q1tRowPtrOrder", at("t.q1t") + 22, &[255; 4], &rich);
    c.bytes("PayloadLength", at("t.q1t") + 26, &[4], &rich);
    c.bytes("PayloadLength", at("t.q1t") + 26, &[255; 4], &rich);
    c.bytes("Q1tColumnRange", at("t.q1t") + 34, &[32], &rich);
    c.bytes("Q1tColumnRange", at("t.q1t") + 30, &[255; 2], &rich);
    c.bytes("Q1tColumnOrder", at("t.q1t") + 34, &[4], &rich);
    c.bytes("Q1tColumnOrder", at("t.q1t") + 34, &[0], &rich);
    for byte in 2..8 {
        c.bytes("Q1tCode", at("t.q1t") + byte, &[243], &rich);
        c.bytes("Q1tCode", at("t.q1t") + 9 + byte, &[255], &rich);
    }
    c.bytes("Q1tLastCode", at("t.q1t") + 8, &[9], &rich);
    // Columns 4 and 9 are the last digits of the first two code bytes; 31 is the second of
    // the last byte in the second tile.
    c.bytes("Q1tBaseCode", at("t.q1t") + 2, &[81], &rich);
    c.bytes("Q1tBaseCode", at("t.q1t") + 3, &[242], &rich);
    c.bytes("Q1tBaseCode", at("t.q1t") + 9 + 8, &[3], &rich);
    c
}

fn mask_cases() -> Cases {
    let b = interop("fileB.cmf");
    let mut c = Cases::default();
    for len in [1, 7] {
        let mut bytes = b.clone();
        replace(&mut bytes, Section::Masks, &[0; 8][..len]);
        c.file("MasksTooShort", format!("{len} bytes"), bytes);
    }
    let at = span(&b, Section::Masks).0;
    c.bytes("MasksMetaOutOfBounds", at + 4, &398u32.to_le_bytes(), &b);
    c.bytes("MasksMetaOutOfBounds", at + 4, &[255; 4], &b);
    c.bytes("MasksJson", at + 4, &[0; 4], &b);
    c.bytes("MasksJson", at + 8, b"[", &b);
    c.bytes("MaskCount", at, &[1], &b);
    c.bytes("MaskCount", at, &[255; 4], &b);
    let mut bad = |expected, path: &str, value: serde_json::Value| {
        let what = format!("{path} = {value}");
        let bytes = edit_masks(&b, |meta| {
            *meta.pointer_mut(path).unwrap() = value.clone();
        });
        c.file(expected, what, bytes);
    };
    bad("MaskLength", "/masks/1/blob_len", json!(12));
    bad("MaskLength", "/masks/1/blob_len", json!(u64::MAX));
    bad("MaskOutOfBounds", "/masks/1/blob_off", json!(1 << 20));
    bad("MaskOutOfBounds", "/masks/1/blob_off", json!(u64::MAX));
    bad("MasksOverlap", "/masks/1/blob_off", json!(4096));
    bad("MasksOverlap", "/masks/0/blob_off", json!(4));
    bad("MasksJson", "/masks/0/sparsity", json!(1e39));
    bad("MasksJson", "/masks/0/quality", json!({"metric": "m", "value": 1e39}));
    bad("MasksJson", "/masks/0/quality", json!({"metric": "m", "value": 1, "baseline_dense": -1e39}));
    bad("MasksJson", "/masks/0/priority", json!("normal"));
    bad("MasksJson", "/default_task", json!(null));
    // Bits of mask 0: 5 bytes per layer for 40 neurons, 1 per layer for 3 heads, 1 for 2 layers.
    let bits = at + 376;
    c.bytes("MaskTailBits", bits + 10, &[0b1000], &b);
    c.bytes("MaskTailBits", bits + 11, &[0b1000_0010], &b);
    c.bytes("MaskTailBits", bits + 12, &[0b0111], &b);
    let narrow = edit_header(&b, |h| h["arch"]["intermediate_size"] = json!(39));
    c.file("MaskTailBits", "39 neurons, bit 39 set", narrow);
    let wide = edit_header(&b, |h| h["arch"]["intermediate_size"] = json!(48));
    c.file("MaskLength", "48 neurons", wide);

    for len in [1, 7] {
        let mut bytes = b.clone();
        replace(&mut bytes, Section::Index, &[0; 8][..len]);
        c.file("IndexTooShort", format!("{len} bytes"), bytes);
    }
    let at = span(&b, Section::Index).0;
    c.bytes("IndexCount", at, &[5], &b);
    c.bytes("IndexCount", at, &[255; 4], &b);
    // 72 bytes hold the three entries; a fourth has no head.
    c.bytes("IndexEntryOutOfBounds", at, &[4], &b);
    c.bytes("IndexEntryOutOfBounds", at + 16, &[255; 4], &b);
    c.bytes("IndexEntryOutOfBounds", at + 20, &[255; 4], &b);
    c.bytes("IndexRange", at + 12, &[2], &b);
    c.bytes("IndexRange", at + 24, &[2], &b);
    c.bytes("IndexRange", at + 28, &[3], &b);
    c
}

fn shard_cases() -> Cases {
    let dir = tempfile::tempdir().unwrap();
    let mut c = Cases::default();
    let write = |name: &str, no, count, tensor: &str| {
        let mut header = header();
        header.shard = Some(ShardInfo { no, count });
        let tensors = [(plan(tensor, Dtype::F32, &[]), vec![0; 4])];
        let path = dir.path().join(name);
        write_file(&path, header, &tensors, Sections::default(), false);
        path
    };
    let open = |path: &Path| CmfFile::open_sharded(path).unwrap_err();
    let wrong = write("model.cmf", 1, 2, "x");
    c.error("ShardName", "no tag", open(&wrong));
    let wrong = write("b-00002-of-00002.cmf", 1, 2, "x");
    c.error("ShardName", "tag of another shard", open(&wrong));
    let alone = write("c-00002-of-00002.cmf", 2, 2, "x");
    c.error("FileNotFound", "shard 1 is missing", open(&alone));
    let first = write("d-00001-of-00002.cmf", 1, 2, "x");
    c.error("FileNotFound", "shard 2 is missing", open(&first));
    write("d-00002-of-00002.cmf", 1, 2, "y");
    c.error("ShardMismatch", "shard 1 in the place of 2", open(&first));
    let first = write("e-00001-of-00002.cmf", 1, 2, "x");
    write("e-00002-of-00002.cmf", 2, 3, "y");
    c.error("ShardMismatch", "another count", open(&first));
    let first = write("f-00001-of-00002.cmf", 1, 2, "x");
    let second = write("f-00002-of-00002.cmf", 2, 2, "x");
    c.error("DuplicateName", "in two shards", open(&first));
    c.error("DuplicateName", "in two shards", open(&second));
    c
}

fn request_cases() -> Cases {
    let dir = tempfile::tempdir().unwrap();
    let mut c = Cases::default();
    let path = dir.path().join("x.cmf");
    for open in [CmfFile::open, CmfFile::open_owned, CmfFile::open_sharded] {
        c.error("FileNotFound", "no file", open(&path).unwrap_err());
        c.error("NotARegularFile", "directory", open(dir.path()).unwrap_err());
        #[cfg(unix)]
        {
            let device = Path::new("/dev/zero");
            c.error("NotARegularFile", "device", open(device).unwrap_err());
        }
        let short = dir.path().join("short.cmf");
        for len in [0, 1] {
            std::fs::write(&short, vec![67; len]).unwrap();
            c.error("FileTooShort", format!("{len} bytes"), open(&short).unwrap_err());
        }
    }
    #[cfg(unix)]
    {
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        c.error("NotARegularFile", "pipe", CmfFile::open(&pipe).unwrap_err());
    }

    std::fs::write(&path, interop("fileA.cmf")).unwrap();
    let file = CmfFile::open(&path).unwrap();
    file.check_length().unwrap();
    c.error("NoSuchTensor", "tensor 2 of 2", file.data(2).unwrap_err());
    c.error("NoSuchTensor", "last", file.data(usize::MAX).unwrap_err());
    let handle = std::fs::File::options().write(true).open(&path).unwrap();
    for len in [200, 0, 5000] {
        handle.set_len(len).unwrap();
        c.error("LengthChanged", format!("{len}"), file.check_length().unwrap_err());
    }
    std::fs::write(&path, interop("fileA.cmf")).unwrap();
    let owned = CmfFile::open_owned(&path).unwrap();
    handle.set_len(0).unwrap();
    owned.check_length().unwrap();
    assert!(owned.verify().ok);

    c.error("OutputExists", "file", create(&path, vec![]).unwrap_err());
    c.error("NotARegularFile", "root", create(Path::new("/"), vec![]).unwrap_err());
    c.error("Io", "below a file", create(&path.join("y.cmf"), vec![]).unwrap_err());
    let overwrite = WriteOptions { digests: false, overwrite: true };
    let error = CmfWriter::create(dir.path(), header(), vec![], Sections::default(), overwrite);
    c.error("NotARegularFile", "directory", error.unwrap_err());
    let nowhere = dir.path().join("missing/new.cmf");
    c.error("NoSuchFolder", "no folder", create(&nowhere, vec![]).unwrap_err());
    #[cfg(unix)]
    {
        let pipe = |name: &str| {
            let path = dir.path().join(name);
            assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
            path
        };
        let (output, partial) = (pipe("out.cmf"), pipe("in.cmf.partial"));
        let error = CmfWriter::create(&output, header(), vec![], Sections::default(), overwrite);
        c.error("NotARegularFile", "a pipe as output", error.unwrap_err());
        c.error("NotARegularFile", "a pipe as partial file", create(&partial.with_extension(""), vec![]).unwrap_err());
        std::fs::remove_file(&partial).unwrap();
        std::os::unix::fs::symlink("/dev/null", &partial).unwrap();
        c.error("NotARegularFile", "a link as partial file", create(&partial.with_extension(""), vec![]).unwrap_err());
    }
    let busy = dir.path().join("busy.cmf");
    let writer = create(&busy, vec![]).unwrap();
    c.error("OutputBusy", "second writer", create(&busy, vec![]).unwrap_err());
    drop(writer);
    plan_cases(&dir.path().join("new.cmf"), &mut c);
    assert!(!dir.path().join("new.cmf.partial").exists());
    c
}

fn create(path: &Path, plan: Vec<TensorPlan>) -> Result<CmfWriter, CmfError> {
    CmfWriter::create(path, header(), plan, Sections::default(), WriteOptions::default())
}

/// What the writer refuses.
fn plan_cases(path: &Path, c: &mut Cases) {
    let mut bad = |expected, tensors: &[(&str, Dtype, &[u32])]| {
        let plan = tensors.iter().map(|(n, d, s)| plan(n, *d, s)).collect();
        let error = create(path, plan).unwrap_err();
        c.error(expected, format!("{:?}", tensors.last().map(|t| (t.1, t.2))), error);
    };
    let long = "x".repeat(65_536);
    bad("NameTooLong", &[(&long, Dtype::F32, &[1])]);
    bad("EmptyName", &[("", Dtype::F32, &[1])]);
    bad("DuplicateName", &[("x", Dtype::F32, &[1]), ("x", Dtype::F16, &[1])]);
    bad("TooManyDims", &[("x", Dtype::F32, &[1; 7])]);
    bad("WrongRank", &[("x", Dtype::Q8Row, &[8])]);
    bad("WrongColumns", &[("x", Dtype::Q1t, &[2, 48])]);
    bad("ShapeOverflow", &[("x", Dtype::F32, &[u32::MAX, u32::MAX])]);
    create(path, vec![plan(&long[1..], Dtype::F32, &[1])]).unwrap();

    let mut writer = create(path, vec![plan("x", Dtype::Q1s, &[32])]).unwrap();
    let payload = unhex("00000000000001000000200000000000");
    c.error("Q1sIndexRange", "written", writer.write_tensor(&payload).unwrap_err());
    c.error("PayloadTruncated", "written", writer.write_tensor(&[]).unwrap_err());
    writer.write_tensor(&[0; 10]).unwrap();
    c.error("TooManyTensors", "one too many", writer.write_tensor(&[]).unwrap_err());
    drop(writer);
    let writer = create(path, vec![plan("x", Dtype::F32, &[1])]).unwrap();
    c.error("MissingTensors", "none written", writer.finish().unwrap_err());

    let mut headers = |expected, edit: &dyn Fn(&mut Header)| {
        let mut header = header();
        edit(&mut header);
        let sections = Sections { masks: Some(masks()), vocab: None };
        let error = CmfWriter::create(path, header, vec![], sections, WriteOptions::default());
        c.error(expected, "header", error.unwrap_err());
    };
    headers("WrongFormatName", &|h| h.format = "CMF".into());
    headers("WrongHeaderVersion", &|h| h.version = 1);
    headers("NotPositive", &|h| h.arch.rms_norm_eps = f64::NAN);
    headers("NotPositive", &|h| h.arch.rope_theta = f64::INFINITY);
    headers("OutOfRange", &|h| h.arch.embed_multiplier = f32::NAN);
    headers("ExtensionNotListed", &|h| {
        h.arch.rope_scaling = Some(RopeScaling::Linear { factor: 2.0 });
    });
    headers("OutOfRange", &|h| {
        h.calibration = Some(Calibration { temperature: 1.0, ece_before: Some(f32::NAN), ece_after: None });
    });
    headers("UnknownExtension", &|h| h.extensions = vec!["new".into()]);
    headers("MaskLength", &|h| h.arch.intermediate_size = 48);
    // Masks of the same length in bytes, but for another number of neurons.
    headers("MaskLength", &|h| h.arch.intermediate_size = 39);

    let mut numbers = |edit: &dyn Fn(&mut Mask)| {
        let mut masks = masks();
        edit(&mut masks.masks[0]);
        let sections = Sections { masks: Some(masks), vocab: None };
        let error = CmfWriter::create(path, header(), vec![], sections, WriteOptions::default());
        c.error("MaskNumber", "mask", error.unwrap_err());
    };
    let quality = |value, baseline_dense| MaskQuality {
        metric: "m".into(),
        value,
        baseline_dense,
        n_samples: None,
        dataset_sha256: None,
    };
    numbers(&|m| m.sparsity = f32::NAN);
    numbers(&|m| m.quality = Some(quality(f32::INFINITY, None)));
    numbers(&|m| m.quality = Some(quality(1.0, Some(f32::NAN))));

    let limits = |heads: usize, neurons: usize| {
        let mut header = header();
        header.arch.num_attention_heads = heads;
        header.arch.intermediate_size = neurons;
        let mask = Mask::new(0, "m", MaskShape::from(&header.arch));
        let sections =
            Sections { masks: Some(MaskCatalogue { default_task: "m".into(), masks: vec![mask] }), vocab: None };
        CmfWriter::create(path, header, vec![], sections, WriteOptions::default()).map(drop)
    };
    limits(256, 32 << 16).unwrap();
    c.error("IndexLimit", "257 heads", limits(257, 40).unwrap_err());
    c.error("IndexLimit", "neurons", limits(3, (32 << 16) + 1).unwrap_err());
}

#[test]
fn envelope_rules() {
    envelope_cases().check();
}

#[test]
fn header_rules() {
    header_cases().check();
}

#[test]
fn directory_rules() {
    directory_cases().check();
}

#[test]
fn payload_rules() {
    payload_cases().check();
}

#[test]
fn mask_rules() {
    mask_cases().check();
}

#[test]
fn shard_rules() {
    shard_cases().check();
}

#[test]
fn request_rules() {
    request_cases().check();
}

#[test]
fn every_variant_has_a_case() {
    let mut seen = std::collections::BTreeSet::new();
    for cases in [envelope_cases, header_cases, directory_cases, payload_cases, mask_cases, shard_cases, request_cases]
    {
        seen.extend(cases().check());
    }
    let missing: Vec<_> = VARIANTS.iter().filter(|v| !seen.contains(*v)).collect();
    assert!(missing.is_empty(), "no case for {missing:?}");
}

/// The tables of docs/cmf-format.md §13 name every variant.
#[test]
fn every_variant_is_documented() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cmf-format.md");
    let page = std::fs::read_to_string(page).unwrap();
    let missing: Vec<_> = VARIANTS.iter().filter(|v| !page.contains(&format!("| `{v}` |"))).collect();
    assert!(missing.is_empty(), "not in docs/cmf-format.md: {missing:?}");
}

/// The bits that are named are the unknown ones only.
#[test]
fn unknown_features_are_named_alone() {
    let mut bytes = interop("fileB.cmf");
    put(&mut bytes, 12, &(FEATURE_EXTENSIONS | 3 | 8 | 32).to_le_bytes());
    match CmfFile::from_bytes(bytes) {
        Err(CmfError::UnsupportedFeature(bits)) => assert_eq!(bits, 8 | 32),
        other => panic!("{other:?}"),
    }
}

/// Things that look odd and are allowed.
#[test]
fn tolerated_oddities() {
    let a = interop("fileA.cmf");
    let mut odd = Vec::new();
    let mut with = |at: usize, value: &[u8]| {
        let mut bytes = a.clone();
        put(&mut bytes, at, value);
        odd.push(bytes);
    };
    with(8, &[255; 4]); // flags
    with(12, &[5]); // QUANT_2F without such a tensor
    with(0x40, &[255; 8]); // offset of an absent section
    with(0x70, &[0; 16]); // no hashes recorded
    with(0x70, &[7; 16]); // wrong hashes: verify's business
    odd.push(edit_header(&a, |h| h["future"] = json!({"x": 1})));
    odd.push(edit_header(&a, |h| h["arch"]["moe"] = json!(null)));
    odd.push(edit_header(&a, |h| {
        h.as_object_mut().unwrap().remove("format");
    }));
    // Sections in another order, and trailing bytes.
    let mut moved = interop("fileB.cmf");
    for section in [Section::Data, Section::Header, Section::Vocab, Section::Directory] {
        let bytes = common::section(&moved, section).to_vec();
        replace(&mut moved, section, &bytes);
    }
    moved.extend([1, 2, 3]);
    odd.push(moved);
    for (i, bytes) in odd.into_iter().enumerate() {
        let file = CmfFile::from_bytes(bytes).unwrap_or_else(|e| panic!("{i}: {e}"));
        assert!(file.find("a.weight").is_some());
    }
}
