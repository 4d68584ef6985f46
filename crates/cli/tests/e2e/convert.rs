//! `convert` and `import-gguf`.

use crate::support::{Room, command, convert, finish, keys, on, one_object, read_json, repository, run, start};

#[test]
fn makes_a_file_and_says_what_is_in_it() {
    let room = Room::new();
    let output = room.path("out.cmf");
    let source = repository("fixtures/models/llama_gqa");
    let flags =
        ["--quant", "q4", "--tensor", "*.q_proj.*=q8", "--tensor", "*.layers.0.self_attn.q_proj.*=f16", "--json"];
    let made = convert(&source, &output, &flags).ok();
    assert_eq!(made.stderr, "");
    let made = one_object(&made.stdout);
    assert_eq!(keys(&made), ["bytes", "output", "tensors"]);
    assert_eq!(made["output"], output.display().to_string());
    assert_eq!(made["bytes"], std::fs::metadata(&output).unwrap().len());
    let info = on("info", &output, &["--json"]).json();
    let count = |dtype: &str| made["tensors"][dtype].as_u64().unwrap();
    for dtype in keys(&made["tensors"]) {
        assert_eq!(info["dtypes"][dtype]["count"], count(dtype), "{dtype}");
    }
    // Embedding and head; the other q projections; the overridden one.
    let layers = info["arch"]["num_layers"].as_u64().unwrap();
    assert_eq!((count("q8_2f"), count("q8_row"), count("f16")), (2, layers - 1, 1));
    assert_eq!(count("q4_block"), 6 * layers);
    assert_eq!(on("verify", &output, &["--json"]).json()["ok"], true);
    assert_eq!(room.names(), ["out.cmf"]);
}

#[test]
fn people_get_a_table_and_plain_lines() {
    let room = Room::new();
    let output = room.path("out.cmf");
    let made = convert(&repository("fixtures/models/llama_tied_bias"), &output, &["--quant", "q4t"]).ok();
    for word in ["stored as", "q4_tiled", "q8_2f", "out.cmf"] {
        assert!(made.stdout.contains(word), "{made:?}");
    }
    // Its FFN width is no multiple of 32: said, not silent.
    assert!(made.stderr.contains("note: ") && made.stderr.contains("cannot be stored as q4_tiled"), "{made:?}");
    assert!(made.stderr.contains("100% ") && !made.stderr.contains('\x1b'), "{made:?}");
}

#[test]
fn the_old_policy_gives_the_old_bytes() {
    let room = Room::new();
    let output = room.path("out.cmf");
    convert(&repository("fixtures/models/llama_gqa"), &output, &["--quant", "vbit", "--policy", "v0.4.0"]).ok();
    let ours = on("info", &output, &["--json"]).json();
    let theirs = on("info", &repository("interop/llama_gqa-vbit.cmf"), &["--json"]).json();
    assert_eq!(ours["dtypes"], theirs["dtypes"]);
}

#[test]
fn an_existing_output_stays_without_force() {
    let room = Room::new();
    let output = room.file("out.cmf", "precious");
    let source = repository("fixtures/models/llama_gqa");
    for json in [&[][..], &["--json"]] {
        convert(&source, &output, json).fails(&["out.cmf exists already", "--force"]);
        run(command().arg("import-gguf").arg(&source).arg("-o").arg(&output).args(json), b"").fails(&["--force"]);
    }
    assert_eq!(std::fs::read(&output).unwrap(), b"precious");
    assert_eq!(room.names(), ["out.cmf"]);
    convert(&source, &output, &["--force"]).ok();
    assert_eq!(on("verify", &output, &["--json"]).json()["ok"], true);
    assert_eq!(room.names(), ["out.cmf"]);
}

#[test]
fn broken_checkpoints_leave_nothing() {
    type Case<'a> = (&'a str, &'a dyn Fn(&std::path::Path), &'a [&'a str]);
    let broken: [Case<'_>; 7] = [
        (
            "no configuration",
            &|dir| std::fs::remove_file(dir.join("config.json")).unwrap(),
            &["config.json", "missing"],
        ),
        ("no weights", &|dir| std::fs::remove_file(dir.join("model-00003-of-00005.safetensors")).unwrap(), &["00003"]),
        ("cut weights", &|dir| cut(&dir.join("model-00002-of-00005.safetensors"), 400_000), &["00002"]),
        ("no tokenizer", &|dir| std::fs::remove_file(dir.join("tokenizer.json")).unwrap(), &["tokenizer.json"]),
        ("no tokenizer model", &|dir| edit(&dir.join("tokenizer.json"), "model", None), &["tokenizer"]),
        ("unknown family", &|dir| edit(&dir.join("config.json"), "model_type", Some("parrot")), &["parrot"]),
        ("no JSON", &|dir| std::fs::write(dir.join("config.json"), "{").unwrap(), &["config.json"]),
    ];
    for (name, harm, words) in broken {
        println!("{name}");
        let room = Room::new();
        let source = room.checkpoint("llama_gqa");
        harm(&source);
        if name == "unknown family" {
            edit(&source.join("config.json"), "architectures", None);
        }
        convert(&source, &room.path("out.cmf"), &["--json"]).fails(words);
        assert_eq!(room.names(), ["llama_gqa"], "{name}");
    }
}

fn cut(path: &std::path::Path, len: u64) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

/// Replaces or removes a key of a JSON file.
fn edit(path: &std::path::Path, key: &str, value: Option<&str>) {
    let mut json = read_json(path);
    let object = json.as_object_mut().unwrap();
    object.remove(key).unwrap();
    if let Some(value) = value {
        object.insert(key.to_owned(), value.into());
    }
    std::fs::write(path, json.to_string()).unwrap();
}

#[test]
fn wrong_sources_are_named() {
    let room = Room::new();
    let output = room.path("out.cmf");
    let gguf = room.file("m.gguf", "GGUF");
    convert(&room.path("no such"), &output, &[]).fails(&["no such", "neither"]);
    convert(&gguf, &output, &[]).fails(&["m.gguf", "import-gguf"]);
    convert(&room.path(""), &output, &[]).fails(&["config.json"]);
    let import = |source: &std::path::Path| run(command().arg("import-gguf").arg(source).arg("-o").arg(&output), b"");
    import(&gguf).fails(&["m.gguf"]);
    import(&room.path("absent.gguf")).fails(&["absent.gguf"]);
    import(&room.path("")).fails(&[]);
    import(&room.file("one.gguf", "G")).fails(&["one.gguf"]);
    // Version 3, 2^60 tensors, no metadata.
    let mut huge = b"GGUF\x03\0\0\0".to_vec();
    huge.extend_from_slice(&(1u64 << 60).to_le_bytes());
    huge.extend_from_slice(&0u64.to_le_bytes());
    import(&room.file("huge.gguf", huge)).fails(&["huge.gguf"]);
    assert_eq!(room.names(), ["huge.gguf", "m.gguf", "one.gguf"]);
}

#[test]
fn outputs_that_cannot_be() {
    let room = Room::new();
    let source = repository("fixtures/models/llama_gqa");
    convert(&source, &room.path("no/such/dir.cmf"), &[]).fails_after_output(&["no/such", "no such folder"]);
    convert(&source, &room.path(""), &["--force"]).fails(&["is a directory"]);
    // The output may not be a part of the source, whatever its name.
    let copy = room.checkpoint("qwen3");
    let weights = copy.join("model.safetensors");
    let before = std::fs::read(&weights).unwrap();
    convert(&copy, &weights, &["--force"]).fails(&["model.safetensors", "source"]);
    assert_eq!(std::fs::read(&weights).unwrap(), before);
}

#[test]
fn two_at_once_leave_one_whole_file() {
    let source = repository("fixtures/models/llama_gqa");
    for round in 0..6 {
        let room = Room::new();
        let output = room.path("out.cmf");
        let flags: &[&str] = if round % 2 == 0 { &["--json"] } else { &["--json", "--force"] };
        let begin = || start(command().arg("convert").arg(&source).arg("-o").arg(&output).args(flags), b"");
        let both = [begin(), begin()].map(finish);
        assert!(both.iter().any(|o| o.code == Some(0)), "{both:?}");
        for outcome in both {
            if outcome.code != Some(0) {
                outcome.fails(&["out.cmf"]);
            }
        }
        assert_eq!(on("verify", &output, &["--json"]).json()["ok"], true);
        assert_eq!(room.names(), ["out.cmf"]);
    }
}

#[cfg(unix)]
#[test]
fn an_interrupt_leaves_nothing() {
    use std::time::{Duration, Instant};
    let room = Room::new();
    // Large enough to be interrupted while it is encoded.
    let source = room.checkpoint("qwen3");
    grow_embedding(&source, 1 << 20);
    let output = room.path("out.cmf");
    let child = start(command().arg("convert").arg(&source).arg("-o").arg(&output).args(["--quant", "q1p"]), b"");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !room.path("out.cmf.partial").exists() {
        assert!(Instant::now() < deadline, "no partial file appeared");
        std::thread::sleep(Duration::from_millis(2));
    }
    let id = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let outcome = finish(child);
    assert_eq!(outcome.code, Some(130), "{outcome:?}");
    assert_eq!(room.names(), ["qwen3"]);
}

/// Makes the embedding of a checkpoint a large sparse tensor, which is the head too.
#[cfg(unix)]
fn grow_embedding(dir: &std::path::Path, rows: u64) {
    const EMBEDDING: &str = "model.embed_tokens.weight";
    let mut config = read_json(&dir.join("config.json"));
    let cols = config["hidden_size"].as_u64().unwrap();
    config["vocab_size"] = rows.into();
    config["tie_word_embeddings"] = true.into();
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();

    let file = dir.join("model.safetensors");
    let old = std::fs::read(&file).unwrap();
    let header_len = u64::from_le_bytes(old[..8].try_into().unwrap()) as usize;
    let tensors: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&old[8..8 + header_len]).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, mut tensor) in tensors {
        if let Some(range) = tensor.get("data_offsets").filter(|_| name != EMBEDDING) {
            let [from, to] = [0, 1].map(|i| 8 + header_len + range[i].as_u64().unwrap() as usize);
            let start = data.len();
            data.extend_from_slice(&old[from..to]);
            tensor["data_offsets"] = serde_json::json!([start, data.len()]);
            header.insert(name, tensor);
        }
    }
    let (start, len) = (data.len() as u64, 4 * rows * cols);
    let embedding = serde_json::json!({"dtype": "F32", "shape": [rows, cols], "data_offsets": [start, start + len]});
    header.insert(EMBEDDING.to_owned(), embedding);
    let header = serde_json::Value::from(header).to_string();
    let new = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(&file, &new).unwrap();
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(new.len() as u64 + len).unwrap();
}
