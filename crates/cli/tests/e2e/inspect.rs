//! `info`, `verify`, `masks`, `completions`, help.

use crate::support::{Room, cortiq, keys, on, repository};

#[test]
fn info_describes() {
    let room = Room::new();
    let model = room.model("llama3_rope", "q4");
    let info = on("info", &model, &["--json"]).json();
    for key in ["format", "arch", "dtypes", "sizes", "skills", "extensions", "tokenizer", "chat_template"] {
        assert!(info.get(key).is_some(), "{key}");
    }
    assert_eq!(info["arch"]["hidden_size"], 128);
    assert_eq!(info["extensions"][0], "rope_scaling");
    assert_eq!(
        (&info["tokenizer"], &info["chat_template"], &info["digests"]),
        (&true.into(), &true.into(), &true.into())
    );
    assert_eq!(info["sizes"]["file"], std::fs::metadata(&model).unwrap().len());
    let bytes: u64 = info["dtypes"].as_object().unwrap().values().map(|d| d["bytes"].as_u64().unwrap()).sum();
    assert_eq!(info["sizes"]["tensors"], bytes);
    let people = on("info", &model, &[]).ok();
    for word in ["q4_block", "rope_scaling", "chat template"] {
        assert!(people.stdout.contains(word), "{people:?}");
    }
}

#[test]
fn files_of_the_older_tool() {
    for entry in std::fs::read_dir(repository("interop")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "cmf") {
            let report = on("verify", &path, &["--json"]).json();
            assert_eq!((&report["ok"], &report["problems"]), (&true.into(), &serde_json::json!([])), "{path:?}");
            assert!(report["hashes_checked"].as_u64().unwrap() > 0);
            assert_eq!(report["digests_checked"], 0);
            on("info", &path, &["--json"]).json();
            on("masks", &path, &["--json"]).json();
            on("info", &path, &[]).ok();
            on("masks", &path, &[]).ok();
        }
    }
}

#[test]
fn verify_counts_and_finds() {
    let room = Room::new();
    let model = room.model("llama_gqa", "q8");
    let good = on("verify", &model, &["--json"]).json();
    assert_eq!((&good["ok"], good["problems"].as_array().unwrap().len()), (&true.into(), 0));
    let tensors = on("info", &model, &["--json"]).json()["tensors"].as_u64().unwrap();
    assert!(good["digests_checked"].as_u64().unwrap() > tensors);
    assert_eq!(good["header_digest"].as_str().unwrap().len(), 64);
    assert!(on("verify", &model, &[]).ok().stdout.starts_with("ok: "));

    let mut bytes = std::fs::read(&model).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    let bad = room.file("bad.cmf", bytes);
    on("verify", &bad, &[]).fails(&["bad.cmf", "damaged", "model.layers"]);
    let report = on("verify", &bad, &["--json"]).fails_after_output(&["bad.cmf"]);
    let report: serde_json::Value = serde_json::from_str(&report.stdout).unwrap();
    assert_eq!(report["ok"], false);
    // Both kinds of sums notice it.
    assert_eq!(report["problems"].as_array().unwrap().len(), 2);
    on("run", &bad, &["--ids", "1,2", "-n", "2", "--verify", "--json"]).fails(&["bad.cmf", "damaged"]);
    on("run", &model, &["--ids", "1,2", "-n", "2", "--verify", "--json"]).json();
    let old = on("run", &repository("interop/llama_gqa-vbit.cmf"), &["--ids", "1,2", "-n", "2", "--verify", "--json"]);
    assert!(old.stderr.contains("no digests"), "{old:?}");
    old.json();
}

#[test]
fn masks_are_listed() {
    let files = ["interop/fileA.cmf", "interop/fileB.cmf"].map(repository);
    let with_masks = files.iter().find(|f| on("info", f, &["--json"]).json()["masks"] != 0);
    let report = on("masks", with_masks.expect("one of the two has masks"), &["--json"]).json();
    assert_eq!(keys(&report), ["default_task", "masks"]);
    let mask = &report["masks"][0];
    assert!(mask["name"].is_string() && mask["task_id"].is_u64());
    for part in ["neurons", "heads", "layers"] {
        let (active, total) = (mask[part]["active"].as_u64().unwrap(), mask[part]["total"].as_u64().unwrap());
        assert!(active <= total && total > 0, "{part}: {mask}");
    }
}

#[test]
fn help_version_and_completions() {
    let version = cortiq(["--version"]).ok();
    assert_eq!(version.stdout, format!("cortiq {}\n", env!("CARGO_PKG_VERSION")));
    let help = cortiq(["--help"]).ok();
    assert!(help.stdout.contains("Examples:"), "{help:?}");
    for command in [
        "convert",
        "import-gguf",
        "run",
        "logits",
        "tokenize",
        "ppl",
        "bench",
        "info",
        "verify",
        "masks",
        "skill",
        "completions",
    ] {
        assert!(help.stdout.contains(command), "{command}");
        let help = cortiq([command, "--help"]).ok();
        assert!(help.stdout.contains("Example") && help.stdout.contains(&format!("cortiq {command}")), "{help:?}");
    }
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        assert!(cortiq(["completions", shell]).ok().stdout.contains("import-gguf"), "{shell}");
    }
}
