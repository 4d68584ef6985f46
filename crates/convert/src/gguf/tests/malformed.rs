//! Damaged and hostile files: a clear error, never a panic, never a large allocation.

use super::writer::{Item, Writer};
use crate::gguf::metadata::ValueType;
use crate::gguf::{GgmlType, GgufError, GgufFile, dequantize, import, tokenizer};

/// A small sound file with every kind of value.
fn sample() -> Writer {
    let mut w = Writer::default();
    w.set("general.architecture", "llama");
    w.set("u32", Item::U32(7));
    w.set("i32", Item::I32(-7));
    w.set("u64", Item::U64(1 << 40));
    w.set("f32", Item::F32(1e-5));
    w.set("bool", Item::Bool(true));
    w.set("strings", Item::Strs(vec!["a".into(), String::new(), "äöü".into()]));
    w.set("ints", Item::I32s(vec![1, -2, 3]));
    w.set("floats", Item::F32s(vec![0.5, -1.5]));
    w.set("bytes", Item::Bytes(vec![1, 2, 3]));
    w.set("nested", nested(2));
    w.set("tokenizer.ggml.model", "gpt2");
    w.set("tokenizer.ggml.pre", "gpt-2");
    let tokens = ["a", "b", "ab", "</s>"].map(str::to_owned).to_vec();
    w.set("tokenizer.ggml.tokens", Item::Strs(tokens));
    w.set("tokenizer.ggml.token_type", Item::I32s(vec![1, 1, 1, 3]));
    w.set("tokenizer.ggml.merges", Item::Strs(vec!["a b".into()]));
    w.set("tokenizer.ggml.eos_token_id", Item::U32(3));
    for (key, value) in [
        ("block_count", 1),
        ("embedding_length", 32),
        ("feed_forward_length", 64),
        ("attention.head_count", 2),
        ("context_length", 128),
    ] {
        w.set(&format!("llama.{key}"), Item::U32(value));
    }
    w.set("llama.attention.layer_norm_rms_epsilon", Item::F32(1e-5));
    w.tensor("token_embd.weight", &[4, 32], 8, vec![3; 4 * 34]);
    w.f32_tensor("output_norm.weight", &[32], &[1.0; 32]);
    for (name, rows, cols) in [
        ("attn_q", 32, 32),
        ("attn_k", 32, 32),
        ("attn_v", 32, 32),
        ("attn_output", 32, 32),
        ("ffn_gate", 64, 32),
        ("ffn_up", 64, 32),
        ("ffn_down", 32, 64),
    ] {
        let data = vec![0x11; rows * cols / 32 * 18];
        w.tensor(&format!("blk.0.{name}.weight"), &[rows as u64, cols as u64], 2, data);
    }
    w.f32_tensor("blk.0.attn_norm.weight", &[32], &[1.0; 32]);
    w.f32_tensor("blk.0.ffn_norm.weight", &[32], &[1.0; 32]);
    w
}

/// An array of one array of … of no u8, `depth` deep.
fn nested(depth: u32) -> Item {
    let mut payload = Vec::new();
    for _ in 1..depth {
        payload.extend((ValueType::Array as u32).to_le_bytes());
        payload.extend(1u64.to_le_bytes());
    }
    payload.extend((ValueType::U8 as u32).to_le_bytes());
    payload.extend(0u64.to_le_bytes());
    Item::Raw(ValueType::Array as u32, payload)
}

fn message(bytes: Vec<u8>) -> String {
    GgufFile::from_bytes(bytes).unwrap_err().to_string()
}

#[test]
fn sound_files_of_both_versions_are_read() {
    for version in [2, 3] {
        let mut writer = sample();
        writer.version = version;
        writer.set("general.alignment", Item::U32(64));
        writer.alignment = 64;
        let file = writer.file();
        assert_eq!(file.version(), version);
        let m = file.metadata();
        assert_eq!(m.unsigned("u32").unwrap(), Some(7));
        assert_eq!(m.unsigned("u64").unwrap(), Some(1 << 40));
        assert!(m.unsigned("i32").unwrap_err().to_string().contains("`i32`"));
        // The shortest decimal, as configuration files have it.
        assert_eq!(m.number("f32").unwrap(), Some(1e-5));
        assert_eq!(m.number("i32").unwrap(), Some(-7.0));
        assert_eq!(m.bool("bool").unwrap(), Some(true));
        assert_eq!(m.strings("strings").unwrap().unwrap(), ["a", "", "äöü"]);
        assert_eq!(m.integers("ints").unwrap().unwrap(), [1, -2, 3]);
        assert_eq!(m.floats("floats").unwrap().unwrap(), [0.5, -1.5]);
        assert_eq!(m.raw_bytes("bytes").unwrap().unwrap(), [1, 2, 3]);
        assert!(m.contains("nested") && m.strings("nested").is_err());
        assert_eq!(m.string("absent").unwrap(), None);
        assert_eq!(m.keys().count(), writer.items.len());
        for (record, tensor) in file.tensors().iter().zip(&writer.tensors) {
            assert_eq!((&record.name, &record.shape), (&tensor.name, &tensor.shape));
            assert_eq!(file.data(record).unwrap(), tensor.data);
        }
        import(file).unwrap();
    }
}

/// One way to damage the sample, and what the error must name.
type Case = (&'static str, fn(&mut Writer), &'static [&'static str]);

#[test]
fn damaged_files_are_refused() {
    let cases: &[Case] = &[
        ("version", |w| w.version = 1, &["version 1"]),
        ("future", |w| w.version = 4, &["version 4"]),
        ("big endian", |w| w.version = 3u32.swap_bytes(), &["big-endian"]),
        ("split", |w| w.set("split.count", Item::U32(3)), &["split.count", "3"]),
        ("alignment", |w| w.set("general.alignment", Item::U32(48)), &["general.alignment", "48"]),
        ("no alignment", |w| w.set("general.alignment", Item::U32(0)), &["general.alignment", "0"]),
        ("key twice", |w| w.items.push(("u32".into(), Item::U32(1))), &["key `u32`", "twice"]),
        ("tensor twice", |w| w.f32_tensor("output_norm.weight", &[1], &[0.0]), &["output_norm.weight", "twice"]),
        ("value type", |w| w.set("odd", Item::Raw(13, vec![0; 8])), &["key `odd`", "13 is not a value type"]),
        ("boolean", |w| w.set("odd", Item::Raw(7, vec![2])), &["key `odd`", "boolean"]),
        ("deep array", |w| w.set("odd", nested(40)), &["depth", "`odd`"]),
        ("array count", |w| w.set("odd", array_of(ValueType::U64, 1 << 25)), &["`odd`", "ends inside"]),
        ("wrapped array", |w| w.set("odd", array_of(ValueType::U64, 1 << 61)), &["`odd`", "limit"]),
        ("string count", |w| w.set("odd", array_of(ValueType::String, 1 << 25)), &["`odd`"]),
        (
            "string beyond the end",
            |w| w.set("odd", Item::Raw(8, (1u64 << 24).to_le_bytes().to_vec())),
            &["`odd`", "ends inside"],
        ),
        ("string length", |w| w.set("odd", Item::Raw(8, u64::MAX.to_le_bytes().to_vec())), &["`odd`", "limit"]),
        ("long name", |w| w.f32_tensor(&"n".repeat(300), &[1], &[0.0]), &["name of tensor", "300"]),
        ("five dims", |w| w.f32_tensor("odd", &[1; 5], &[0.0]), &["`odd`", "5"]),
        ("no dims", |w| w.f32_tensor("odd", &[], &[0.0]), &["`odd`", "no dimensions"]),
        ("zero dim", |w| w.f32_tensor("odd", &[4, 0], &[]), &["`odd`", "dimension is 0"]),
        ("wrapped dims", |w| w.f32_tensor("odd", &[1 << 32, 1 << 32], &[0.0; 4]), &["`odd`", "overflows"]),
        ("wrapped size", |w| w.f32_tensor("odd", &[1 << 31, 1 << 32], &[0.0; 4]), &["`odd`", "overflows"]),
        (
            "wrapped dims of an unknown type",
            |w| w.tensor("odd", &[u64::MAX, u64::MAX], 16, vec![]),
            &["`odd`", "overflows"],
        ),
        ("ragged blocks", |w| w.tensor("odd", &[2, 48], 2, vec![0; 64]), &["`odd`", "48"]),
        ("beyond the end", |w| w.f32_tensor("odd", &[1024], &[0.0; 4]), &["tensor `odd`", "ends inside"]),
        (
            "offset beyond the end",
            |w| {
                w.f32_tensor("odd", &[1], &[0.0]);
                w.tensors.last_mut().unwrap().offset = Some(1 << 40);
            },
            &["tensor `odd`", "ends inside"],
        ),
        (
            "offset wraps",
            |w| {
                w.f32_tensor("odd", &[1], &[0.0]);
                w.tensors.last_mut().unwrap().offset = Some(0u64.wrapping_sub(32));
            },
            &["tensor `odd`", "ends inside"],
        ),
        (
            "offset alignment",
            |w| {
                w.f32_tensor("odd", &[1], &[0.0]);
                w.tensors.last_mut().unwrap().offset = Some(8);
            },
            &["tensor `odd`", "multiple of 32"],
        ),
    ];
    for (name, change, words) in cases {
        let mut writer = sample();
        change(&mut writer);
        let message = message(writer.bytes());
        for word in *words {
            assert!(message.contains(word), "{name}: {message}");
        }
    }
}

fn array_of(element: ValueType, count: u64) -> Item {
    let mut payload = (element as u32).to_le_bytes().to_vec();
    payload.extend(count.to_le_bytes());
    Item::Raw(ValueType::Array as u32, payload)
}

#[test]
fn wrong_magic_and_huge_counts_are_refused() {
    let sound = sample().bytes();
    for magic in [*b"GGML", *b"lmgg", [0; 4]] {
        let mut bytes = sound.clone();
        bytes[..4].copy_from_slice(&magic);
        assert!(message(bytes).contains("not a GGUF file"));
    }
    for (at, what) in [(8, "tensor count"), (16, "key count")] {
        for count in [u64::MAX, 1 << 40, 300_000] {
            let mut bytes = sound.clone();
            bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
            let message = message(bytes);
            assert!(message.contains(what) && message.contains("limit"), "{message}");
        }
    }
    // Within the limits, but more than there is.
    let mut bytes = sound.clone();
    bytes[16..24].copy_from_slice(&60_000u64.to_le_bytes());
    assert!(GgufFile::from_bytes(bytes).is_err());
}

#[test]
fn every_truncation_is_an_error() {
    let sound = sample().bytes();
    for len in 0..sound.len() {
        assert!(GgufFile::from_bytes(sound[..len].to_vec()).is_err(), "{len} of {}", sound.len());
    }
    GgufFile::from_bytes(sound).unwrap();
}

#[test]
fn a_type_that_cannot_be_read_is_only_an_error_when_it_is_used() {
    let mut writer = sample();
    writer.tensor("odd", &[2, 256], 19, vec![0; 100]);
    let file = writer.file();
    let record = &file.tensors()[file.find("odd").unwrap()];
    for error in [file.data(record).unwrap_err(), record.ggml_type().unwrap_err()] {
        assert!(matches!(&error, GgufError::TensorType { name, ggml_type }
            if name == "odd" && ggml_type == "IQ1_S"));
    }
}

/// xorshift64*, so that the cases are the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

fn mutate(bytes: &mut Vec<u8>, head: usize, random: &mut Random) {
    const INTERESTING: [u64; 10] = [0, 1, 2, 0x7f, 0xff, 0xffff, 1 << 31, u32::MAX as u64, 1 << 63, u64::MAX];
    for _ in 0..=random.below(3) {
        let at = random.below(head.min(bytes.len()).max(1));
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 | 3 => {
                let value = INTERESTING[random.below(INTERESTING.len())].to_le_bytes();
                let width = [1, 4, 8][random.below(3)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&value[..width]);
            }
            4 => {
                let count = random.below(9).min(bytes.len() - at - 1);
                bytes.drain(at..at + count);
            }
            _ => bytes.truncate(bytes.len() - random.below(bytes.len().min(64))),
        }
        if bytes.len() < 32 {
            return;
        }
    }
}

/// Everything that a conversion does with a file, short of writing.
fn exercise(bytes: Vec<u8>) -> Result<(), String> {
    let file = GgufFile::from_bytes(bytes).map_err(|e| e.to_string())?;
    for record in file.tensors() {
        if let Ok(data) = file.data(record) {
            let values = dequantize(record.ggml_type().unwrap(), data).unwrap();
            assert_eq!(values.len() as u64, record.shape.iter().product::<u64>());
        }
    }
    let keys: Vec<String> = file.metadata().keys().map(str::to_owned).collect();
    for key in keys {
        let m = file.metadata();
        // Each may fail; none may panic.
        drop((m.string(&key), m.strings(&key), m.integers(&key), m.floats(&key)));
        drop((m.unsigned(&key), m.number(&key), m.bool(&key), m.token_id(&key)));
    }
    drop(tokenizer::rebuild(file.metadata()));
    let model = import(file).map_err(|e| e.to_string())?;
    for tensor in &model.tensors {
        let values = (tensor.load)().map_err(|e| e.to_string())?;
        assert_eq!(values.len() as u64, tensor.len());
    }
    Ok(())
}

#[test]
fn mutated_files_never_panic() {
    const CASES: usize = 60_000;
    let sound = sample().bytes();
    exercise(sound.clone()).unwrap();
    // Mutations go into the part before the tensor data.
    let head = sound.len() - sample().tensors.iter().map(|t| t.data.len()).sum::<usize>();
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut accepted = 0;
    for _ in 0..CASES {
        let mut bytes = sound.clone();
        mutate(&mut bytes, head, &mut random);
        accepted += usize::from(exercise(bytes).is_ok());
    }
    // The mutations must neither all be harmless nor all be caught at the magic.
    assert!(accepted > CASES / 100 && accepted < CASES / 2, "{accepted} of {CASES}");
}

#[test]
fn random_data_of_every_type_expands_without_panic() {
    let mut random = Random(99);
    for ggml_type in GgmlType::ALL {
        let data: Vec<u8> = (0..ggml_type.block_bytes() * 64).map(|_| random.next() as u8).collect();
        let values = dequantize(ggml_type, &data).unwrap();
        assert_eq!(values.len(), ggml_type.block_len() * 64);
    }
}
