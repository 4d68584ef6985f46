//! Environment variables.

use crate::support::{Room, command, repository, run};

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
fn values_that_mean_nothing_are_named() {
    for (name, value) in [("CMF_THREADS", "many"), ("CMF_MAX_SEQ", "-4"), ("HF_HUB_OFFLINE", "perhaps")] {
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
