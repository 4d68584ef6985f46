//! Rebuilt tokenizers against the golden ids of the tokenizers they come from.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;
use tokenizers::Tokenizer;

use super::writer::{Item, Writer};
use super::{fixture, list, read_json, text};
use crate::gguf::GgufError;
use crate::gguf::tokenizer::{RebuiltTokenizer, rebuild};

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// The token keys that a converter would write for a `tokenizer.json`.
fn metadata_of(source: &Value) -> Writer {
    let model = &source["model"];
    let mut tokens: BTreeMap<u64, (String, i32)> = BTreeMap::new();
    let unknown = model["unk_token"].as_str();
    let pieces: Vec<(String, u64)> = match &model["vocab"] {
        Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), v.as_u64().unwrap())).collect(),
        Value::Array(rows) => (0..).zip(rows).map(|(id, row)| (row[0].as_str().unwrap().to_owned(), id)).collect(),
        other => panic!("vocab {other}"),
    };
    for (piece, id) in pieces {
        let is_byte = piece.len() == 6 && piece.starts_with("<0x") && piece.ends_with('>');
        tokens.insert(id, (piece, if is_byte { BYTE } else { NORMAL }));
    }
    for added in list(source, "added_tokens") {
        let content = text(added, "content");
        let kind = match added["special"].as_bool().unwrap() {
            _ if Some(content) == unknown => UNKNOWN,
            true => CONTROL,
            false => USER_DEFINED,
        };
        tokens.insert(added["id"].as_u64().unwrap(), (content.to_owned(), kind));
    }
    let last = *tokens.keys().last().unwrap();
    let mut texts = Vec::new();
    let mut kinds = Vec::new();
    for id in 0..=last {
        let (text, kind) = tokens.get(&id).cloned().unwrap_or((format!("[PAD{id}]"), UNUSED));
        texts.push(text);
        kinds.push(kind);
    }
    let mut writer = Writer::default();
    writer.set("tokenizer.ggml.tokens", Item::Strs(texts));
    writer.set("tokenizer.ggml.token_type", Item::I32s(kinds));
    writer
}

fn merges_of(source: &Value) -> Vec<String> {
    list(&source["model"], "merges")
        .iter()
        .map(|merge| match merge {
            Value::String(text) => text.clone(),
            pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
        })
        .collect()
}

fn id_of(source: &Value, content: &str) -> u32 {
    let found = list(source, "added_tokens").iter().find(|t| t["content"] == content);
    found.unwrap()["id"].as_u64().unwrap() as u32
}

/// Byte-level BPE under a `pre` name.
fn byte_level(source: &Value, pre: &str) -> Writer {
    let mut writer = metadata_of(source);
    writer.set("tokenizer.ggml.model", "gpt2");
    writer.set("tokenizer.ggml.pre", pre);
    writer.set("tokenizer.ggml.merges", Item::Strs(merges_of(source)));
    writer
}

/// SentencePiece BPE: merges are forgotten, each piece gets minus the rank of the merge that makes
/// it as its score, as SentencePiece models have them.
fn sentencepiece(source: &Value) -> Writer {
    let mut writer = metadata_of(source);
    let mut rank: HashMap<String, usize> = HashMap::new();
    let merges = merges_of(source);
    for (index, merge) in merges.iter().enumerate() {
        let (left, right) = merge.split_once(' ').unwrap();
        rank.entry(format!("{left}{right}")).or_insert(index);
    }
    let Some((_, Item::Strs(tokens))) = writer.items.iter().find(|(key, _)| key == "tokenizer.ggml.tokens") else {
        panic!("no tokens")
    };
    let scores = tokens.iter().map(|t| -(*rank.get(t).unwrap_or(&merges.len()) as f32)).collect();
    writer.set("tokenizer.ggml.model", "llama");
    writer.set("tokenizer.ggml.scores", Item::F32s(scores));
    writer
}

fn rebuilt(writer: &Writer) -> (Tokenizer, RebuiltTokenizer) {
    let rebuilt = rebuild(writer.file().metadata()).unwrap();
    (Tokenizer::from_bytes(&rebuilt.json).unwrap(), rebuilt)
}

fn ids(value: &Value, key: &str) -> Vec<u32> {
    list(value, key).iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Compares all golden strings but those that contain one of `stripping`: GGUF does not record
/// that a token takes the spaces beside it. Returns how many were compared.
fn compare(name: &str, tokenizer: &Tokenizer, stripping: &[&str]) -> usize {
    let golden = read_json(&fixture(&format!("tokenizers/{name}/golden.json")));
    let mut compared = 0;
    for case in list(&golden, "encode") {
        let input = text(case, "text");
        if stripping.iter().any(|token| input.contains(token)) {
            continue;
        }
        let plain = tokenizer.encode_fast(input, false).unwrap();
        assert_eq!(plain.get_ids(), ids(case, "ids"), "{name} {input:?}");
        let special = tokenizer.encode_fast(input, true).unwrap();
        assert_eq!(special.get_ids(), ids(case, "ids_with_special"), "{name} {input:?}");
        let decoded = tokenizer.decode(plain.get_ids(), false).unwrap();
        assert_eq!(decoded, text(case, "decoded"), "{name} {input:?}");
        compared += 1;
    }
    for case in list(&golden, "decode") {
        let ids = ids(case, "ids");
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), text(case, "decoded"), "{name} {ids:?}");
        let without = tokenizer.decode(&ids, true).unwrap();
        assert_eq!(without, text(case, "decoded_skip_special"), "{name} {ids:?}");
    }
    compared
}

fn source(name: &str) -> Value {
    read_json(&fixture(&format!("tokenizers/{name}/tokenizer.json")))
}

#[test]
fn byte_level_tokenizers_give_the_golden_ids() {
    for (name, pre, bos) in [
        ("qwen_bpe", "qwen2", None),
        ("qwen35_bpe", "qwen35", None),
        ("llama3_bpe", "llama-bpe", Some("<|begin_of_text|>")),
    ] {
        let source = source(name);
        let mut writer = byte_level(&source, pre);
        if let Some(bos) = bos {
            writer.set("tokenizer.ggml.bos_token_id", Item::U32(id_of(&source, bos)));
        }
        let (tokenizer, rebuilt) = rebuilt(&writer);
        assert_eq!(compare(name, &tokenizer, &[]), 275);
        assert_eq!(rebuilt.special.bos, bos.map(|bos| id_of(&source, bos)));
        assert!(rebuilt.notes.is_empty(), "{:?}", rebuilt.notes);
    }
}

#[test]
fn the_wrong_splitting_rule_gives_other_ids() {
    // Guards the test above: the golden strings do tell the rules apart.
    let source = source("qwen_bpe");
    let golden = read_json(&fixture("tokenizers/qwen_bpe/golden.json"));
    for pre in ["gpt-2", "smollm", "default", "tekken"] {
        let (tokenizer, _) = rebuilt(&byte_level(&source, pre));
        let differs = list(&golden, "encode")
            .iter()
            .any(|case| tokenizer.encode_fast(text(case, "text"), false).unwrap().get_ids() != ids(case, "ids"));
        assert!(differs, "{pre}");
    }
}

#[test]
fn sentencepiece_merges_are_recovered_from_scores() {
    let source_of = source;
    let source = source_of("llama_spm");
    let (tokenizer, rebuilt_llama) = rebuilt(&sentencepiece(&source));
    let stripping: Vec<&str> = list(&source, "added_tokens")
        .iter()
        .filter(|t| t["lstrip"] == true || t["rstrip"] == true || t["normalized"] == true)
        .map(|t| text(t, "content"))
        .collect();
    let compared = compare("llama_spm", &tokenizer, &stripping);
    assert!(compared >= 250, "{compared}");
    let special = &rebuilt_llama.special;
    assert_eq!((special.bos, special.eos, special.unk), (Some(1), Some(2), Some(0)));

    let source = source_of("gemma_spm");
    let mut writer = sentencepiece(&source);
    writer.set("tokenizer.ggml.add_space_prefix", Item::Bool(false));
    writer.set("tokenizer.ggml.bos_token_id", Item::U32(2));
    writer.set("tokenizer.ggml.eos_token_id", Item::U32(1));
    let (tokenizer, _) = rebuilt(&writer);
    assert_eq!(compare("gemma_spm", &tokenizer, &[]), 275);
}

#[test]
fn unigram_is_rebuilt_with_its_scores() {
    let source = source("unigram_bf");
    let mut writer = metadata_of(&source);
    let scores = list(&source["model"], "vocab").iter().map(|row| row[1].as_f64().unwrap() as f32);
    writer.set("tokenizer.ggml.model", "t5");
    writer.set("tokenizer.ggml.scores", Item::F32s(scores.collect()));
    writer.set("tokenizer.ggml.unknown_token_id", Item::U32(0));
    writer.set("tokenizer.ggml.bos_token_id", Item::U32(1));
    writer.set("tokenizer.ggml.add_bos_token", Item::Bool(true));
    writer.set("tokenizer.ggml.add_eos_token", Item::Bool(false));
    let (tokenizer, _) = rebuilt(&writer);
    assert_eq!(compare("unigram_bf", &tokenizer, &[]), 275);
}

#[test]
fn every_pre_name_gives_a_tokenizer_that_loads_and_round_trips() {
    let source = source("qwen_bpe");
    for pre in [
        "default",
        "gpt-2",
        "phi-2",
        "olmo",
        "smollm",
        "starcoder",
        "refact",
        "command-r",
        "llama-bpe",
        "llama3",
        "llama-v3",
        "dbrx",
        "qwen2",
        "deepseek-r1-qwen",
        "qwen35",
        "tekken",
        "gpt-4o",
        "llama4",
        "deepseek-coder",
        "deepseek-v3",
        "falcon",
    ] {
        let (tokenizer, _) = rebuilt(&byte_level(&source, pre));
        let input = "It's 12345 WORDS, isn't it?\r\n\tИ это — 中文 12\u{b2}!!\n";
        let encoded = tokenizer.encode_fast(input, false).unwrap();
        assert_eq!(tokenizer.decode(encoded.get_ids(), false).unwrap(), input, "{pre}");
    }
}

#[test]
fn splitting_rules_cut_as_their_families_do() {
    let source = source("qwen_bpe");
    for (pre, input, pieces) in [
        ("smollm", "abc 1234", vec!["abc", "Ġ", "1", "2", "3", "4"]),
        ("gpt-2", "abc 1234", vec!["abc", "Ġ1234"]),
        ("llama-bpe", "abc 12345", vec!["abc", "Ġ", "123", "45"]),
        ("qwen2", "abc 123", vec!["abc", "Ġ", "1", "2", "3"]),
        ("qwen2", "\u{915}\u{93e}", vec!["à¤ķ", "à¤¾"]),
        ("qwen35", "\u{915}\u{93e}", vec!["à¤ķà¤¾"]),
        ("tekken", "HelloWorld", vec!["Hello", "World"]),
        ("gpt-4o", "HelloWorld's", vec!["Hello", "World's"]),
        ("deepseek-v3", "a\u{4e00}1234", vec!["a", "ä¸Ģ", "123", "4"]),
        ("deepseek-coder", "ab\n12", vec!["ab", "Ċ", "1", "2"]),
        ("falcon", "a..12345", vec!["a", "..", "123", "45"]),
        ("default", "a..12345", vec!["a", "..", "123", "45"]),
    ] {
        let (tokenizer, _) = rebuilt(&byte_level(&source, pre));
        use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};
        let mut text = PreTokenizedString::from(input);
        tokenizer.get_pre_tokenizer().unwrap().pre_tokenize(&mut text).unwrap();
        let found: Vec<String> = text
            .get_splits(OffsetReferential::Original, OffsetType::Byte)
            .into_iter()
            .map(|(piece, _, _)| piece.to_owned())
            .collect();
        assert_eq!(found, pieces, "{pre}");
    }
}

#[test]
fn special_user_defined_and_unused_tokens() {
    let source = source("qwen_bpe");
    let mut writer = byte_level(&source, "qwen2");
    let (end, think) = (id_of(&source, "<|im_end|>"), id_of(&source, "<think>"));
    let pad = id_of(&source, "<|endoftext|>");
    writer.set("tokenizer.ggml.eos_token_id", Item::U32(end));
    writer.set("tokenizer.ggml.eot_token_id", Item::U32(end));
    writer.set("tokenizer.ggml.eom_token_id", Item::U32(pad));
    writer.set("tokenizer.ggml.padding_token_id", Item::U32(pad));
    writer.set("tokenizer.ggml.bos_token_id", Item::U32(pad));
    writer.set("tokenizer.ggml.add_bos_token", Item::Bool(true));
    writer.set("tokenizer.ggml.add_eos_token", Item::Bool(true));
    writer.set("tokenizer.chat_template", "{{ messages }}");
    let Some((_, Item::Strs(tokens))) = writer.items.iter_mut().find(|(k, _)| k.ends_with("tokens")) else {
        panic!("no tokens")
    };
    tokens.extend(["[PAD]".to_owned(), "[PAD]".to_owned()]);
    let count = tokens.len();
    let Some((_, Item::I32s(kinds))) = writer.items.iter_mut().find(|(k, _)| k.ends_with("token_type")) else {
        panic!("no types")
    };
    kinds.extend([UNUSED, UNUSED]);
    let (tokenizer, rebuilt) = rebuilt(&writer);
    assert_eq!(rebuilt.special.ends(), [end, pad]);
    assert_eq!(rebuilt.special.pad, Some(pad));
    assert_eq!(rebuilt.chat_template.as_deref(), Some("{{ messages }}"));
    assert_eq!(rebuilt.token_count, count);
    let encoded = tokenizer.encode_fast("a<think>b<|im_end|>", true).unwrap();
    let ids = encoded.get_ids();
    assert_eq!(ids.first(), Some(&pad));
    assert_eq!(ids.last(), Some(&end));
    assert!(ids.contains(&think));
    // The special token disappears, the user-defined one is text.
    assert_eq!(tokenizer.decode(ids, true).unwrap(), "a<think>b");
    assert_eq!(tokenizer.token_to_id("[PAD]"), None);
}

#[test]
fn an_end_token_of_an_ordinary_kind_becomes_special() {
    let source = source("qwen_bpe");
    let mut writer = byte_level(&source, "qwen2");
    let end = id_of(&source, "</think>");
    writer.set("tokenizer.ggml.eos_token_id", Item::U32(end));
    let (tokenizer, _) = rebuilt(&writer);
    let encoded = tokenizer.encode_fast("a</think>", false).unwrap();
    assert_eq!(encoded.get_ids().last(), Some(&end));
    assert_eq!(tokenizer.decode(encoded.get_ids(), true).unwrap(), "a");
}

/// One change to sound metadata, and what the error must name.
type Case = (&'static str, fn(&mut Writer), &'static [&'static str]);

#[test]
fn bad_metadata_is_refused_by_key() {
    let cases: &[Case] = &[
        (
            "no model",
            |w| {
                w.remove("tokenizer.ggml.model");
            },
            &["tokenizer.ggml.model"],
        ),
        (
            "bert",
            |w| {
                w.set("tokenizer.ggml.model", "bert");
            },
            &["tokenizer.ggml.model", "bert"],
        ),
        (
            "no pre",
            |w| {
                w.remove("tokenizer.ggml.pre");
            },
            &["tokenizer.ggml.pre"],
        ),
        (
            "pre",
            |w| {
                w.set("tokenizer.ggml.pre", "odd");
            },
            &["tokenizer.ggml.pre", "odd"],
        ),
        (
            "no tokens",
            |w| {
                w.remove("tokenizer.ggml.tokens");
            },
            &["tokenizer.ggml.tokens"],
        ),
        (
            "empty",
            |w| {
                w.set("tokenizer.ggml.tokens", Item::Strs(Vec::new()));
            },
            &["tokenizer.ggml.tokens", "empty"],
        ),
        (
            "type",
            |w| {
                w.set("tokenizer.ggml.tokens", Item::U32(1));
            },
            &["tokenizer.ggml.tokens", "array"],
        ),
        (
            "repeated",
            |w| {
                w.set("tokenizer.ggml.tokens", Item::Strs(vec!["a".into(); 727]));
            },
            &["tokenizer.ggml.tokens", "0 and 1"],
        ),
        (
            "types",
            |w| {
                w.set("tokenizer.ggml.token_type", Item::I32s(vec![1; 3]));
            },
            &["tokenizer.ggml.token_type", "3 elements"],
        ),
        (
            "kind",
            |w| {
                w.set("tokenizer.ggml.token_type", Item::I32s(vec![9; 727]));
            },
            &["tokenizer.ggml.token_type", "9"],
        ),
        (
            "no merges",
            |w| {
                w.remove("tokenizer.ggml.merges");
            },
            &["tokenizer.ggml.merges"],
        ),
        (
            "one piece",
            |w| {
                w.set("tokenizer.ggml.merges", Item::Strs(vec!["in".into()]));
            },
            &["tokenizer.ggml.merges", "element 0", "two pieces"],
        ),
        (
            "three pieces",
            |w| {
                w.set("tokenizer.ggml.merges", Item::Strs(vec!["i n g".into()]));
            },
            &["tokenizer.ggml.merges", "two pieces"],
        ),
        (
            "unknown piece",
            |w| {
                w.set("tokenizer.ggml.merges", Item::Strs(vec!["\u{1f600} n".into()]));
            },
            &["tokenizer.ggml.merges", "no token"],
        ),
        (
            "id",
            |w| {
                w.set("tokenizer.ggml.eos_token_id", Item::U32(727));
            },
            &["tokenizer.ggml.eos_token_id", "727"],
        ),
        (
            "flag",
            |w| {
                w.set("tokenizer.ggml.add_bos_token", Item::Bool(true));
            },
            &["tokenizer.ggml.bos_token_id"],
        ),
        (
            "flag type",
            |w| {
                w.set("tokenizer.ggml.add_bos_token", Item::U32(1));
            },
            &["tokenizer.ggml.add_bos_token", "boolean"],
        ),
        (
            "no scores",
            |w| {
                w.set("tokenizer.ggml.model", "llama");
            },
            &["tokenizer.ggml.scores"],
        ),
        (
            "scores",
            |w| {
                w.set("tokenizer.ggml.model", "llama");
                w.set("tokenizer.ggml.scores", Item::F32s(vec![0.0; 2]));
            },
            &["tokenizer.ggml.scores", "2 elements"],
        ),
        (
            "nan",
            |w| {
                w.set("tokenizer.ggml.model", "llama");
                w.set("tokenizer.ggml.scores", Item::F32s(vec![f32::NAN; 727]));
            },
            &["tokenizer.ggml.scores", "not a number"],
        ),
        (
            "charsmap",
            |w| {
                w.set("tokenizer.ggml.model", "t5");
                w.set("tokenizer.ggml.precompiled_charsmap", Item::Bytes(vec![1, 2]));
            },
            &["tokenizer.ggml.precompiled_charsmap"],
        ),
        (
            "no unknown",
            |w| {
                w.set("tokenizer.ggml.model", "t5");
                w.set("tokenizer.ggml.scores", Item::F32s(vec![0.0; 727]));
            },
            &["tokenizer.ggml.unknown_token_id"],
        ),
        (
            "template",
            |w| {
                w.set("tokenizer.chat_template", Item::F32(1.0));
            },
            &["tokenizer.chat_template", "string"],
        ),
    ];
    let source = source("qwen_bpe");
    for (name, change, words) in cases {
        let mut writer = byte_level(&source, "qwen2");
        rebuild(writer.file().metadata()).unwrap();
        change(&mut writer);
        let error = rebuild(writer.file().metadata()).unwrap_err();
        let message = error.to_string();
        for word in *words {
            assert!(message.contains(word), "{name}: {message}");
        }
        assert!(!matches!(error, GgufError::Tokenizer { .. }), "{name}: {message}");
    }
}

#[test]
fn id_of_minus_one_means_none() {
    let source = source("qwen_bpe");
    let mut writer = byte_level(&source, "qwen2");
    writer.set("tokenizer.ggml.bos_token_id", Item::I32(-1));
    writer.set("tokenizer.ggml.padding_token_id", Item::U32(u32::MAX));
    let (_, rebuilt) = rebuilt(&writer);
    assert_eq!((rebuilt.special.bos, rebuilt.special.pad), (None, None));
}
