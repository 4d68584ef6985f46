//! `tokenize`.

use serde_json::Value;

use crate::support::{Room, ids, joined, keys, on_with, read_json, repository};

#[test]
fn ids_and_text_are_the_golden_ones() {
    let room = Room::new();
    let model = room.model("llama_gqa", "q8");
    let tokenizer = repository("fixtures/tokenizers/llama_spm/tokenizer.json");
    let golden = read_json(&repository("fixtures/tokenizers/llama_spm/golden.json"));
    let cases = golden["encode"].as_array().unwrap();
    for case in cases.iter().step_by(40) {
        let text = case["text"].as_str().unwrap().as_bytes();
        for source in [&model, &tokenizer] {
            let plain = on_with("tokenize", source, &["--no-special", "--json"], text).json();
            assert_eq!(keys(&plain), ["ids"]);
            assert_eq!(plain["ids"], case["ids"], "{case}");
            let special = on_with("tokenize", source, &["--json"], text).json();
            assert_eq!(special["ids"], case["ids_with_special"], "{case}");
        }
    }
    for case in golden["decode"].as_array().unwrap().iter().step_by(20) {
        let list = joined(&ids(&case["ids"]));
        for (input, flags, want) in [
            (list.clone(), &["--decode", "--json"][..], "decoded"),
            (list.replace(',', "\n "), &["--decode", "--json"], "decoded"),
            (list, &["--decode", "--json", "--no-special"], "decoded_skip_special"),
        ] {
            let text = on_with("tokenize", &tokenizer, flags, input.as_bytes()).json();
            assert_eq!(keys(&text), ["text"]);
            assert_eq!(text["text"], case[want], "{case}");
        }
    }
}

#[test]
fn without_json_plain_ids_and_text() {
    let tokenizer = repository("fixtures/tokenizers/llama_spm/tokenizer.json");
    let text = "Hello\nworld ";
    let printed = on_with("tokenize", &tokenizer, &["--no-special"], text.as_bytes()).ok();
    let json = on_with("tokenize", &tokenizer, &["--no-special", "--json"], text.as_bytes()).json();
    let numbers: Vec<Value> = printed.stdout.split_whitespace().map(|n| n.parse::<u64>().unwrap().into()).collect();
    assert_eq!(Value::from(numbers), json["ids"]);
    let back = on_with("tokenize", &tokenizer, &["--decode"], printed.stdout.as_bytes()).ok();
    assert_eq!(back.stdout, text);
    assert_eq!(
        on_with("tokenize", &tokenizer, &["--no-special", "--json"], b"").json()["ids"],
        Value::from(Vec::<u64>::new())
    );
}

#[test]
fn bad_input_is_refused() {
    let tokenizer = repository("fixtures/tokenizers/llama_spm/tokenizer.json");
    on_with("tokenize", &tokenizer, &[], b"ab\xff").fails(&["UTF-8"]);
    for input in ["1,x", "1,,2", "-1", "99999999999"] {
        on_with("tokenize", &tokenizer, &["--decode", "--json"], input.as_bytes()).fails(&["token id"]);
    }
    let room = Room::new();
    for (name, json) in [
        ("empty.json", ""),
        ("cut.json", "{\"version\":"),
        ("no-model.json", r#"{"version":"1.0","added_tokens":[]}"#),
        ("other.json", r#"{"version":"1.0","added_tokens":[],"model":{"type":"Markov","vocab":{}}}"#),
        (
            "pieces.json",
            r#"{"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}}"#,
        ),
    ] {
        on_with("tokenize", &room.file(name, json), &["--json"], b"a").fails(&[name]);
    }
    on_with("tokenize", &repository("interop/fileA.cmf"), &[], b"a").fails(&["fileA.cmf", "tokenizer"]);
}
