//! Things that are no model, and outputs that go away.

use std::path::Path;
use std::process::Stdio;

use crate::support::{Room, command, finish, on, on_with, repository};

/// Every command that opens a container, with the flags it needs.
const READERS: [(&str, &[&str]); 8] = [
    ("run", &["--ids", "1"]),
    ("logits", &["--ids", "1"]),
    ("tokenize", &[]),
    ("ppl", &["-f", "text.txt"]),
    ("bench", &["-p", "1", "-n", "1", "-r", "1"]),
    ("info", &["--json"]),
    ("verify", &[]),
    ("masks", &["--json"]),
];

#[track_caller]
fn refused_by_all(path: &Path, words: &[&str]) {
    for (command, flags) in READERS {
        on_with(command, path, flags, b"text").fails(words);
    }
}

#[test]
fn missing_and_directory() {
    let room = Room::new();
    refused_by_all(&room.path("absent.cmf"), &["absent.cmf"]);
    std::fs::create_dir(room.path("dir.cmf")).unwrap();
    refused_by_all(&room.path("dir.cmf"), &["dir.cmf"]);
    on("run", &repository("fixtures/models/llama_gqa"), &["--ids", "1"]).fails(&["llama_gqa", "cortiq convert"]);
    on("run", &room.file("m.cmf", "GGUF and more"), &["--ids", "1"]).fails(&["m.cmf", "import-gguf"]);
}

#[cfg(unix)]
#[test]
fn a_pipe_is_not_waited_for() {
    let room = Room::new();
    let pipe = room.path("pipe.cmf");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    refused_by_all(&pipe, &["pipe.cmf"]);
    let model = room.model("llama_gqa", "q8");
    on("ppl", &model, &["-f", pipe.to_str().unwrap()]).fails(&["pipe.cmf", "regular file"]);
    let json = room.path("pipe.json");
    assert!(std::process::Command::new("mkfifo").arg(&json).status().unwrap().success());
    on_with("tokenize", &json, &[], b"text").fails(&["pipe.json"]);
    for command in ["convert", "import-gguf"] {
        on(command, &pipe, &["-o", room.path("out.cmf").to_str().unwrap()]).fails(&["pipe.cmf"]);
    }
    // Nor is one inside a checkpoint.
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        let source = room.checkpoint("qwen3");
        std::fs::rename(&json, source.join(file)).unwrap();
        on("convert", &source, &["-o", room.path("out.cmf").to_str().unwrap()]).fails(&[file]);
        std::fs::rename(source.join(file), &json).unwrap();
        std::fs::remove_dir_all(source).unwrap();
    }
    assert!(!room.path("out.cmf").exists());
}

#[test]
fn cut_files() {
    let room = Room::new();
    let whole = std::fs::read(room.model("llama_gqa", "q8")).unwrap();
    for len in [0, 1, 4, 100, 4096, whole.len() / 2, whole.len() - 1] {
        let name = format!("cut-{len}.cmf");
        refused_by_all(&room.file(&name, &whole[..len]), &[&name]);
        let verified = on("verify", &room.path(&name), &["--json"]).fails_after_output(&[&name]);
        let report: serde_json::Value = serde_json::from_str(&verified.stdout).unwrap();
        assert_eq!(report["ok"], false);
        assert_eq!(report["problems"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let room = Room::new();
    let model = room.model("llama_gqa", "q8");
    let ids = vec!["5"; 300].join(",");
    let cases: [&[&str]; 3] = [
        // 3 MB: more than a pipe holds.
        &["logits", model.to_str().unwrap(), "--ids", &ids, "--all"],
        &["run", model.to_str().unwrap(), "--ids", "5,6", "-n", "200", "--ignore-eos"],
        &["completions", "zsh"],
    ];
    for args in cases {
        let mut command = command();
        let mut child =
            command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let outcome = finish(child);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error() {
    for args in [&["completions", "bash"][..], &["info", repository("interop/fileA.cmf").to_str().unwrap(), "--json"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = command();
        let child = command.args(args).stdin(Stdio::null()).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        finish(child).fails(&["standard output", "space"]);
    }
}
