//! Environment variables.

use crate::support::{Room, command, floats, repository, run};

#[test]
fn limits_from_the_environment() {
    let model = repository("interop/llama_gqa-vbit.cmf");
    let logits = |variables: &[(&str, &str)], flags: &[&str]| {
        let mut command = command();
        run(command.envs(variables.iter().copied()).args(["logits", "--ids", "1,2,3"]).arg(&model).args(flags), b"")
    };
    logits(&[("CMF_MAX_SEQ", "2")], &[]).fails(&["context of 2"]);
    logits(&[("CMF_MAX_SEQ", "2")], &["--ctx", "4"]).json();
    // Meant for all models, so one with less keeps its own limit.
    logits(&[("CMF_MAX_SEQ", "1000000")], &[]).json();
    assert_eq!(logits(&[("CMF_THREADS", "1")], &[]).json(), logits(&[("CMF_THREADS", "3")], &[]).json());
}

#[test]
fn the_cache_is_kept_as_asked() {
    let model = repository("interop/llama_gqa-vbit.cmf");
    let ids = (0..70).map(|i| (i * 7 % 250).to_string()).collect::<Vec<_>>().join(",");
    let logits = |variable: &str, flags: &[&str]| {
        let mut command = command();
        command.env("CMF_KV", variable).args(["logits", "--ids", &ids]).args(flags).arg(&model);
        let json = run(&mut command, b"").json();
        floats(&json["logits"][0])
    };
    let exact = logits("", &[]);
    assert_eq!(exact, logits("q8", &["--kv", "f32"]), "the flag overrides");
    for (name, bar) in [("f16", 0.01), ("q8", 0.2)] {
        let kept = logits("", &["--kv", name]);
        assert_eq!(kept, logits(name, &[]), "{name}");
        let distance = exact.iter().zip(&kept).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(distance > 0.0 && distance < bar, "{name}: {distance}");
    }
    for executor in ["cpu", "reference"] {
        let answer = run(
            command()
                .args(["run", "--ids", "1,2,3", "-n", "70", "--greedy", "--ignore-eos", "--json", "--kv", "q8"])
                .args(["--executor", executor])
                .arg(&model),
            b"",
        );
        assert_eq!(answer.json()["tokens"].as_array().unwrap().len(), 70);
    }
}

#[test]
fn values_that_mean_nothing_are_named() {
    for (name, value) in [
        ("CMF_THREADS", "many"),
        ("CMF_MAX_SEQ", "-4"),
        ("CMF_KV", "q9"),
        ("CMF_GPU", "metal"),
        ("CMF_GPU_VRAM_MB", "lots"),
        ("WGPU_BACKEND", "gl"),
        ("HF_HUB_OFFLINE", "perhaps"),
    ] {
        let mut command = command();
        run(command.env(name, value).arg("info").arg(repository("interop/fileA.cmf")), b"").fails(&[name, value]);
    }
}

#[test]
fn offline_means_offline() {
    let room = Room::new();
    let mut command = command();
    command.env("HF_HUB_OFFLINE", "1").env("HF_HOME", room.path("hf"));
    let outcome = run(command.args(["convert", "owner/name", "-o"]).arg(room.path("out.cmf")), b"");
    outcome.fails(&["HF_HUB_OFFLINE", "owner/name", "not in the cache"]);
    assert!(!room.path("out.cmf").exists());
}

#[test]
fn a_hub_that_cannot_be_reached_is_an_error() {
    let room = Room::new();
    // Nothing listens on the discard port of this machine.
    let mut command = command();
    command.env("HF_ENDPOINT", "http://127.0.0.1:9").env("HF_HOME", room.path("hf"));
    let outcome = run(command.args(["convert", "owner/name", "-o"]).arg(room.path("out.cmf")), b"");
    outcome.fails(&["owner/name"]);
    assert!(!room.path("out.cmf").exists());
}
