//! `run` and `logits`.

use serde_json::Value;

use crate::support::{Room, convert, floats, golden, ids, joined, keys, on, on_with, read_json, repository};

/// Below this margin between the best two logits, another order of summation may decide.
const SMALL_MARGIN: f64 = 0.02;

#[test]
fn greedy_tokens_are_the_golden_ones() {
    let room = Room::new();
    let model = room.model("llama_gqa", "f32");
    for (sequence, executor) in [(1, "reference"), (1, "cpu"), (2, "cpu"), (3, "cpu")] {
        let golden = golden("llama_gqa", sequence);
        let prompt = ids(&golden["input_ids"]);
        let flags =
            ["--ids", &joined(&prompt), "-n", "24", "--greedy", "--ignore-eos", "--json", "--executor", executor];
        let answer = on("run", &model, &flags).json();
        assert_eq!(keys(&answer), ["finish_reason", "prompt_tokens", "text", "timings", "tokens"]);
        assert_eq!(keys(&answer["timings"]), ["predicted_ms", "predicted_n", "prompt_ms", "prompt_n"]);
        assert_eq!(ids(&answer["prompt_tokens"]), prompt);
        assert_eq!(answer["finish_reason"], "length");
        assert_eq!(answer["timings"]["prompt_n"], prompt.len());
        assert_eq!(answer["timings"]["predicted_n"], 24);
        let margins = floats(&golden["greedy"]["top2_margin"]);
        let sure = margins.iter().position(|m| *m < SMALL_MARGIN).unwrap_or(margins.len());
        assert!(sure > 4, "nothing to compare");
        assert_eq!(ids(&answer["tokens"])[..sure], ids(&golden["greedy"]["tokens"])[..sure], "{sequence} {executor}");
    }
}

#[test]
fn logits_are_the_golden_ones() {
    let room = Room::new();
    let model = room.model("llama_gqa", "f32");
    let golden = golden("llama_gqa", 1);
    let prompt = joined(&ids(&golden["input_ids"]));
    for (executor, bar) in [("reference", 2e-4), ("cpu", 2e-3)] {
        let all = on("logits", &model, &["--ids", &prompt, "--all", "--executor", executor]).json();
        assert_eq!(keys(&all), ["logits"]);
        let rows = all["logits"].as_array().unwrap();
        assert_eq!(rows.len(), 7);
        for (row, want) in rows.iter().zip(golden["all_logits"].as_array().unwrap()) {
            let worst = floats(row).iter().zip(floats(want)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(worst <= bar, "{executor}: {worst}");
        }
        let last = on("logits", &model, &["--ids", &prompt, "--executor", executor, "--json"]).json();
        assert_eq!(last["logits"].as_array().unwrap()[..], rows[6..]);
    }
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let room = Room::new();
    let model = room.model("qwen3", "q8");
    let tokens = |seed: &str| {
        let flags = [
            "-p",
            "Hello",
            "-n",
            "24",
            "--temperature",
            "1.2",
            "--top-p",
            "1",
            "--seed",
            seed,
            "--json",
            "--ignore-eos",
        ];
        ids(&on("run", &model, &flags).json()["tokens"])
    };
    let first = tokens("7");
    assert_eq!(first.len(), 24);
    assert_eq!(first, tokens("7"));
    assert_ne!(first, tokens("8"));
}

#[test]
fn the_template_makes_the_prompt() {
    let room = Room::new();
    let model = room.model("llama_gqa", "q8");
    let prompt =
        |flags: &[&str]| ids(&on("run", &model, &[flags, &["-n", "1", "--json"]].concat()).json()["prompt_tokens"]);
    let ids_of = |text: &str, flags: &[&str]| {
        ids(&on_with("tokenize", &model, &[flags, &["--json"]].concat(), text.as_bytes()).json()["ids"])
    };
    let plain = ["--no-special"];
    assert_eq!(prompt(&["-p", " Good day\n"]), ids_of("<s>[INST] Good day [/INST]", &plain));
    let with_system = "<s>[INST] <<SYS>>\nBe brief\n<</SYS>>\n\nGood day [/INST]";
    assert_eq!(prompt(&["-p", "Good day", "--system", "Be brief"]), ids_of(with_system, &plain));
    let raw = prompt(&["-p", "Good day", "--raw"]);
    assert_eq!(raw, ids_of("Good day", &[]));
    assert_eq!(raw[0], 1, "the tokenizer puts a begin token in front");
}

#[test]
fn a_pipe_is_the_prompt_word_for_word() {
    let room = Room::new();
    let model = room.model("llama_gqa", "q8");
    let prompt = |flags: &[&str], input: &str| {
        let flags = [&["-n", "1", "--raw", "--json"], flags].concat();
        ids(&on_with("run", &model, &flags, input.as_bytes()).json()["prompt_tokens"])
    };
    assert_eq!(prompt(&[], "two\nlines\n"), prompt(&["-p", "two\nlines\n"], ""));
    assert_ne!(prompt(&[], "two\nlines\n"), prompt(&[], "two\nlines"));
    // A prompt may look like a flag.
    assert_eq!(prompt(&[], "-n"), prompt(&["-p", "-n"], ""));
    on_with("run", &model, &["--raw"], b"").fails(&["prompt is empty"]);
    on_with("run", &model, &["--raw"], b"ab\xff").fails(&["standard input", "UTF-8"]);
}

#[test]
fn text_streams_and_stops() {
    let room = Room::new();
    let model = room.model("qwen3", "q8");
    let flags = ["-p", "Hello", "-n", "30", "--greedy", "--ignore-eos"];
    let plain = on("run", &model, &flags).ok();
    let json = on("run", &model, &[&flags[..], &["--json"]].concat()).json();
    let text = json["text"].as_str().unwrap();
    assert_eq!(plain.stdout, format!("{text}\n"));
    assert!(plain.stderr.starts_with("[prompt: ") && plain.stderr.lines().count() == 1, "{plain:?}");
    // A piece out of the middle of the text ends the next one, in front of it.
    let start = text.char_indices().nth(text.chars().count() / 2).unwrap().0;
    let stop: String = text[start..].chars().take(3).collect();
    let cut = on("run", &model, &[&flags[..], &["--json", "--stop", "no such text", "--stop", &stop]].concat()).json();
    assert_eq!(cut["finish_reason"], "stop");
    assert_eq!(cut["text"], text[..text.find(&stop).unwrap()]);
    assert!(cut["tokens"].as_array().unwrap().len() < 30);
}

#[test]
fn an_end_token_ends_the_answer_and_is_counted() {
    let room = Room::new();
    let model = room.model("llama_gqa", "q8");
    let flags = ["--ids", "5,6", "-n", "8", "--greedy", "--logit-bias", "2=100", "--json"];
    let ended = on("run", &model, &flags).json();
    assert_eq!((ids(&ended["tokens"]), &ended["finish_reason"]), (vec![2], &Value::from("stop")));
    let on_and_on = on("run", &model, &[&flags[..], &["--ignore-eos"]].concat()).json();
    assert_eq!((ids(&on_and_on["tokens"]), &on_and_on["finish_reason"]), (vec![2; 8], &Value::from("length")));
    let nothing = on("run", &model, &["--ids", "5,6", "-n", "0", "--json"]).json();
    assert_eq!((ids(&nothing["tokens"]), &nothing["finish_reason"]), (vec![], &Value::from("length")));
}

#[test]
fn the_context_is_a_limit() {
    let room = Room::new();
    let model = room.model("llama_gqa", "q8");
    let flags = ["--ids", "5,6,7", "--ctx", "8", "--greedy", "--ignore-eos", "--json"];
    let full = on("run", &model, &flags).json();
    assert_eq!(full["finish_reason"], "length");
    // Five more positions, and the token after the last of them.
    assert_eq!(full["tokens"].as_array().unwrap().len(), 6);
    on("run", &model, &["--ids", "5,6,7", "--ctx", "3"]).fails(&["3 tokens", "context of 3"]);
    on("run", &model, &["--ids", "5,6,7", "--ctx", "2000"]).fails(&["--ctx", "2000", "1024"]);
    on("logits", &model, &["--ids", "5,6,7", "--ctx", "2"]).fails(&["3 tokens", "context of 2"]);
    let long = "word ".repeat(3000);
    on_with("run", &model, &["--raw"], long.as_bytes()).fails(&["context of 1024"]);
}

#[test]
fn wrong_ids_are_refused() {
    let room = Room::new();
    let model = room.model("llama_gqa", "q8");
    for command in ["run", "logits"] {
        on(command, &model, &["--ids", "1,1024"]).fails(&["1024", "vocabulary"]);
        on(command, &model, &["--ids", ""]).fails(&["prompt is empty"]);
    }
    on("run", &model, &["-p", ""]).fails(&["prompt is empty"]);
    on("run", &model, &["--ids", "1", "--logit-bias", "4000=1"]).fails(&["4000", "vocabulary"]);
    on("run", &model, &["--ids", "1", "--skill", "juggling"]).fails(&["juggling"]);
}

#[test]
fn templates_that_fail_say_so() {
    let room = Room::new();
    let source = room.checkpoint("llama_gqa");
    let file = source.join("tokenizer_config.json");
    let set = |template: Option<&str>| {
        let mut config = read_json(&file);
        let object = config.as_object_mut().unwrap();
        object.remove("chat_template");
        if let Some(template) = template {
            object.insert("chat_template".to_owned(), template.into());
        }
        std::fs::write(&file, config.to_string()).unwrap();
        let model = room.path("model.cmf");
        convert(&source, &model, &["--force"]).ok();
        model
    };
    let model = set(Some("{{ raise_exception('only\\npoems') }}"));
    on("run", &model, &["-p", "hi"]).fails(&["template", "only poems"]);
    on("run", &model, &["-p", "hi", "--json"]).fails(&["template", "only poems"]);
    on("run", &model, &["-p", "hi", "--raw", "-n", "2"]).ok();
    let model = set(None);
    on("run", &model, &["-p", "hi"]).fails(&["no chat template", "--raw"]);
    on("run", &model, &["-p", "hi", "--raw", "-n", "2"]).ok();
}

#[test]
fn memory_instead_of_a_map() {
    let room = Room::new();
    let model = room.model("qwen3", "q4");
    let flags = ["--ids", "1,2,3", "-n", "6", "--greedy", "--json"];
    let mapped = on("run", &model, &flags).json();
    let owned = on("run", &model, &[&flags[..], &["--owned", "--verify"]].concat()).json();
    assert_eq!(mapped["tokens"], owned["tokens"]);
}

#[test]
fn what_cannot_run_is_named() {
    let moe = repository("interop/qwen3_moe-vbit.cmf");
    assert_eq!(on("verify", &moe, &["--json"]).json()["ok"], true);
    assert_eq!(on("info", &moe, &["--json"]).json()["format"], "cmf");
    for command in ["run", "logits"] {
        on(command, &moe, &["--ids", "1,2"]).fails(&["qwen3_moe-vbit.cmf", "cannot be run", "moe"]);
    }
    on("bench", &moe, &["-p", "2", "-n", "0", "-r", "1"]).fails(&["cannot be run"]);
}

/// A hybrid that the public v0.4.0 tool wrote: both executors give the same most probable tokens.
#[test]
fn hybrids_of_other_writers_run() {
    let hybrid = repository("interop/qwen3_5-q8.cmf");
    assert_eq!(on("verify", &hybrid, &["--json"]).json()["ok"], true);
    let tokens = |executor| {
        let options = ["--ids", "1,2,3", "-n", "8", "--greedy", "--ignore-eos", "--json", "--executor", executor];
        on("run", &hybrid, &options).json()["tokens"].clone()
    };
    assert_eq!(tokens("cpu"), tokens("reference"));
}

#[test]
fn the_demo_needs_no_file() {
    let demo = std::path::Path::new("demo");
    let story = on("run", demo, &["-p", "Tell me a story about a fox.", "-n", "12", "--greedy", "--json"]).json();
    assert!(story["text"].as_str().unwrap().starts_with("Once upon a time"), "{story}");
    assert_eq!(on("verify", demo, &["--json"]).json()["ok"], true);
    assert_eq!(on("info", demo, &["--json"]).json()["format"], "cmf");
}
