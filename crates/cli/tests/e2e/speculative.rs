//! `--speculative` of `run` and `bench`.

use crate::support::{Room, cortiq, ids, keys, on};

const PROMPT: [&str; 6] = ["--ids", "5,6,7,5,6,7,5", "-n", "12", "--greedy", "--ignore-eos"];

#[test]
fn guesses_are_reported_and_change_no_token() {
    for (name, how, kind) in
        [("llama_gqa", "ngram", "ngram"), ("llama_gqa", "auto", "ngram"), ("qwen3_5_vl_layout", "auto", "mtp")]
    {
        let room = Room::new();
        let model = room.model(name, "f32");
        let answer = |flags: &[&str]| {
            on("run", &model, &[&PROMPT[..], &["--executor", "reference", "--json"], flags].concat()).json()
        };
        let plain = answer(&[]);
        let guessed = answer(&["--speculative", how, "--draft-tokens", "2"]);
        assert_eq!(ids(&guessed["tokens"]), ids(&plain["tokens"]), "{name}");
        let mut expected = keys(&plain);
        assert!(!expected.contains(&"speculative"), "{name}");
        expected.push("speculative");
        expected.sort_unstable();
        assert_eq!(keys(&guessed), expected, "{name}");
        let guesses = &guessed["speculative"];
        assert_eq!(keys(guesses), ["accepted", "drafted", "kind"], "{name}");
        assert_eq!(guesses["kind"], kind, "{name}");
        assert!(guesses["accepted"].as_u64().unwrap() <= guesses["drafted"].as_u64().unwrap(), "{name}");
        assert_eq!(keys(&answer(&["--speculative", "off"])), keys(&plain), "{name}");
    }
}

#[test]
fn people_see_the_guesses_too() {
    let room = Room::new();
    let model = room.model("qwen3_5_vl_layout", "f32");
    let outcome = on("run", &model, &[&PROMPT[..], &["--speculative", "mtp"]].concat()).ok();
    assert!(outcome.stderr.contains("guesses by mtp right"), "{outcome:?}");
}

#[test]
fn bench_compares_answers() {
    let room = Room::new();
    let model = room.model("qwen3_5_vl_layout", "q8");
    let flags = ["-p", "9", "-n", "6", "-r", "2", "--threads", "1", "--speculative"];
    let report = on("bench", &model, &[&flags[..], &["mtp", "--json"]].concat()).json();
    assert_eq!(keys(&report), ["rows", "speculative"]);
    let part = &report["speculative"];
    let expected =
        ["accepted", "drafted", "kind", "plain_tok_s", "predicted_tokens", "prompt_tokens", "speedup", "tok_s"];
    assert_eq!(keys(part), expected);
    assert_eq!((part["prompt_tokens"].as_u64(), part["predicted_tokens"].as_u64()), (Some(9), Some(6)));
    let median = |key: &str| part[key]["median"].as_f64().unwrap();
    assert!((part["speedup"].as_f64().unwrap() - median("tok_s") / median("plain_tok_s")).abs() < 1e-9);
    let people = on("bench", &model, &[&flags[..], &["ngram"]].concat()).ok();
    assert!(people.stdout.contains("with ngram") && people.stdout.contains("guesses right"), "{people:?}");
}

#[test]
fn wishes_that_cannot_be_fulfilled() {
    let room = Room::new();
    let model = room.model("llama_gqa", "q8");
    let path = model.to_str().unwrap();
    for command in [&["run", path, "--ids", "1,2"][..], &["bench", path, "-p", "1", "-n", "1", "-r", "1"]] {
        let with = |flags: &[&'static str]| cortiq([command, flags].concat());
        with(&["--speculative", "mtp"]).fails(&["mtp", "no prediction head"]);
        with(&["--speculative", "magic"]).misused(&["magic", "ngram"]);
        with(&["--draft-tokens", "3"]).misused(&["--draft-tokens", "--speculative"]);
        for count in ["0", "17"] {
            with(&["--speculative", "ngram", "--draft-tokens", count]).misused(&[count, "1..=16"]);
        }
    }
    cortiq(["bench", path, "-n", "0", "--speculative", "ngram"]).misused(&["-n"]);
}
