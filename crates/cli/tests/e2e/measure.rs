//! `ppl` and `bench`.

use crate::support::{Room, command, floats, ids, joined, keys, on, on_with, run};

/// `-log softmax(row)[id]`.
fn nll(row: &[f64], id: usize) -> f64 {
    let max = row.iter().copied().fold(f64::MIN, f64::max);
    row.iter().map(|x| (x - max).exp()).sum::<f64>().ln() + max - row[id]
}

#[test]
fn perplexity_follows_from_the_logits() {
    let room = Room::new();
    let model = room.model("llama_gqa", "f32");
    let text = room.file("text.txt", "The quick brown fox jumps over the lazy dog, and then it sleeps.\n");
    let text_ids =
        ids(&on_with("tokenize", &model, &["--no-special", "--json"], &std::fs::read(&text).unwrap()).json()["ids"]);
    assert!(text_ids.len() > 17);
    for (prefix, stride) in [(None, None), (Some(1), None), (None, Some(3)), (Some(1), Some(3))] {
        let (window, own) = (8, if prefix.is_some() { 7 } else { 8 });
        let (mut sum, mut count) = (0.0, 0);
        for run in text_ids.chunks(own) {
            let all: Vec<u64> = prefix.into_iter().chain(run.iter().copied()).collect();
            if all.len() < 2 {
                continue;
            }
            let logits = on("logits", &model, &["--ids", &joined(&all), "--all"]).json();
            let first = all.len().saturating_sub(stride.unwrap_or(window)).max(1);
            for at in first..all.len() {
                sum += nll(&floats(&logits["logits"][at - 1]), all[at] as usize);
                count += 1;
            }
        }
        let mut flags = vec!["-f".to_owned(), text.display().to_string(), "--window".to_owned(), window.to_string()];
        flags.extend(stride.into_iter().flat_map(|n| ["--stride".to_owned(), n.to_string()]));
        flags.extend(["--prefix-id".to_owned(), prefix.map_or("none".to_owned(), |id| id.to_string())]);
        flags.push("--json".to_owned());
        let score = run_ppl(&model, &flags);
        assert_eq!(keys(&score), ["nll_mean", "perplexity", "tokens"]);
        assert_eq!(score["tokens"], count);
        let mean = score["nll_mean"].as_f64().unwrap();
        assert!(
            (mean - sum / f64::from(count)).abs() < 1e-5,
            "{prefix:?} {stride:?}: {mean} {}",
            sum / f64::from(count)
        );
        assert!((score["perplexity"].as_f64().unwrap() / mean.exp() - 1.0).abs() < 1e-12);
    }
}

fn run_ppl(model: &std::path::Path, flags: &[String]) -> serde_json::Value {
    on("ppl", model, &flags.iter().map(String::as_str).collect::<Vec<_>>()).json()
}

#[test]
fn texts_that_cannot_be_scored() {
    let room = Room::new();
    let model = room.model("llama_gqa", "q8");
    let ppl =
        |file: &std::path::Path, flags: &[&str]| on("ppl", &model, &[&["-f", file.to_str().unwrap()], flags].concat());
    ppl(&room.file("empty.txt", ""), &[]).fails(&["0 tokens"]);
    ppl(&room.file("bad.txt", b"\xff"), &[]).fails(&["bad.txt", "UTF-8"]);
    ppl(&room.path("absent.txt"), &[]).fails(&["absent.txt"]);
    ppl(&room.path(""), &[]).fails(&["directory"]);
    let text = room.file("text.txt", "some words");
    ppl(&text, &["--window", "5000"]).fails(&["--window", "5000", "1024"]);
    ppl(&text, &["--prefix-id", "70000"]).fails(&["70000", "vocabulary"]);
    let people = ppl(&text, &[]).ok();
    assert!(people.stdout.starts_with("perplexity "), "{people:?}");
}

#[test]
fn bench_rows() {
    let room = Room::new();
    let model = room.model("llama_gqa", "q8");
    let report = on("bench", &model, &["-p", "8", "-n", "4", "-r", "2", "--threads", "1", "--json"]).json();
    assert_eq!(keys(&report), ["rows"]);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|r| r["test"].as_str().unwrap()).collect::<Vec<_>>(), ["pp8", "tg4"]);
    for row in rows {
        assert_eq!(keys(row), ["bandwidth_fraction", "bandwidth_gb_s", "gb_s", "test", "tok_s"]);
        assert_eq!(keys(&row["tok_s"]), ["max", "median", "min"]);
        let number = |value: &serde_json::Value| value.as_f64().unwrap();
        let speed = &row["tok_s"];
        assert!(0.0 < number(&speed["min"]) && number(&speed["min"]) <= number(&speed["median"]));
        assert!(number(&speed["median"]) <= number(&speed["max"]));
        assert!(number(&row["bandwidth_gb_s"]) > 0.0 && number(&row["gb_s"]) > 0.0);
        let fraction = number(&row["gb_s"]) / number(&row["bandwidth_gb_s"]);
        assert!((number(&row["bandwidth_fraction"]) - fraction).abs() < 1e-9);
    }
    // Decoding reads all weights but the embedding for each token.
    let info = on("info", &model, &["--json"]).json();
    let bytes = info["sizes"]["tensors"].as_f64().unwrap();
    let per_token = rows[1]["gb_s"].as_f64().unwrap() * 1e9 / rows[1]["tok_s"]["median"].as_f64().unwrap();
    assert!((0.7..=1.0).contains(&(per_token / bytes)), "{per_token} of {bytes}");
    let people = on("bench", &model, &["-p", "0", "-n", "2", "-r", "1", "--executor", "reference"]).ok();
    assert!(
        people.stdout.contains("tok/s") && people.stdout.contains("tg2") && !people.stdout.contains("pp"),
        "{people:?}"
    );
}

#[test]
fn bench_of_a_shape_needs_no_file() {
    let flags = ["bench", "--shape", "smollm2-135m", "--quant", "q4t", "-p", "4", "-n", "1", "-r", "1", "--json"];
    let report = run(command().args(flags), b"").json();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    // 106 M weights of 4.5 bits and an embedding, which is the head too, of 28 M weights of 8 bits.
    let per_token = rows[1]["gb_s"].as_f64().unwrap() * 1e9 / rows[1]["tok_s"]["median"].as_f64().unwrap();
    assert!((85e6..92e6).contains(&per_token), "{per_token}");
}
