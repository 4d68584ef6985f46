//! The gpu executor on a software adapter (Mesa's lavapipe), and `doctor`.

use std::process::Command;

use serde_json::Value;

use crate::support::{Outcome, Room, command, floats, golden, ids, joined, keys, repository, run};

/// A command whose Vulkan loader finds only the software adapter, whatever the machine has, and says nothing by itself.
fn software() -> Command {
    let mut command = command();
    command.env_remove("CMF_GPU");
    let folder = std::path::Path::new("/usr/share/vulkan/icd.d");
    let drivers = std::fs::read_dir(folder).expect("Vulkan drivers; on Debian, mesa-vulkan-drivers");
    let lavapipe = drivers
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("lvp_icd")));
    let lavapipe = lavapipe.expect("lavapipe, the software driver; on Debian, mesa-vulkan-drivers");
    // The first variable is the loader's new name for the second one.
    command.env("VK_DRIVER_FILES", &lavapipe).env("VK_ICD_FILENAMES", &lavapipe).env("XDG_RUNTIME_DIR", "/tmp");
    command
}

fn cortiq(args: &[&str]) -> Outcome {
    run(software().args(args), b"")
}

fn llama(room: &Room, quant: &str) -> String {
    room.model("llama_gqa", quant).display().to_string()
}

/// Tokens and margins of a greedy answer must be the golden ones until a margin is small.
fn check_greedy(answer: &Value, golden: &Value, small: f64) {
    let margins = floats(&golden["greedy"]["top2_margin"]);
    let tokens = ids(&answer["tokens"]);
    let sure = margins.iter().position(|m| *m < small).unwrap_or(margins.len()).min(tokens.len());
    assert!(sure > 4, "nothing to compare");
    assert_eq!(tokens[..sure], ids(&golden["greedy"]["tokens"])[..sure]);
}

#[test]
fn greedy_tokens_are_the_golden_ones() {
    let room = Room::new();
    let model = llama(&room, "f32");
    let golden = golden("llama_gqa", 1);
    let prompt = joined(&ids(&golden["input_ids"]));
    let flags = ["run", &model, "--ids", &prompt, "-n", "16", "--greedy", "--ignore-eos", "--json", "--software-gpu"];
    for (precision, small) in [("exact", 0.02), ("fast", 0.05)] {
        let flags = [&flags[..], &["--executor", "gpu", "--precision", precision]].concat();
        check_greedy(&cortiq(&flags).json(), &golden, small);
    }
    // The environment asks for a GPU; flags override it.
    let asked = run(software().args(flags).env("CMF_GPU", "1").env("WGPU_BACKEND", "vk"), b"").json();
    check_greedy(&asked, &golden, 0.05);
}

#[test]
fn logits_tell_the_precisions_apart() {
    let room = Room::new();
    let model = llama(&room, "q8");
    let logits = |flags: &[&str]| {
        let json = cortiq(&[&["logits", &model, "--ids", "1,2,3,4,5,6,7"], flags].concat()).json();
        floats(&json["logits"][0])
    };
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let cosine = |a: &[f64], b: &[f64]| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    let reference = logits(&["--executor", "reference"]);
    let gpu = |precision| logits(&["--executor", "gpu", "--software-gpu", "--precision", precision]);
    let (exact, fast) = (gpu("exact"), gpu("fast"));
    let worst = exact.iter().zip(&reference).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(worst <= 2e-3, "{worst}");
    let alike = cosine(&fast, &reference);
    assert!(alike > 0.999 && alike < cosine(&exact, &reference), "{alike}");
}

/// The built-in hybrid tells the same story as on the CPU, up to the first close decision.
#[test]
fn the_demo_runs() {
    let flags = ["run", "demo", "-p", "Tell me a story about a fox.", "-n", "16", "--greedy", "--json"];
    let tokens = |more: &[&str]| ids(&cortiq(&[&flags[..], more].concat()).json()["tokens"]);
    let cpu = tokens(&["--executor", "cpu"]);
    let gpu = tokens(&["--executor", "gpu", "--software-gpu", "--precision", "exact"]);
    assert!(!cpu.is_empty());
    let same = cpu.iter().zip(&gpu).take_while(|(a, b)| a == b).count();
    if same < cpu.len() {
        // The two executors may part where the best two tokens are nearly equal, and nowhere else.
        let prompt = cortiq(&[&flags[..], &["--executor", "cpu"]].concat()).json()["prompt_tokens"].clone();
        let so_far = joined(&[&ids(&prompt)[..], &cpu[..same]].concat());
        let json = cortiq(&["logits", "demo", "--ids", &so_far, "--executor", "reference"]).json();
        let mut logits = floats(&json["logits"][0]);
        logits.sort_by(|a, b| b.total_cmp(a));
        assert!(logits[0] - logits[1] < 0.05, "{cpu:?} and {gpu:?} part after {same}");
    }
}

#[test]
fn software_must_be_asked_for() {
    let model = repository("interop/llama_gqa-vbit.cmf");
    let model = model.to_str().unwrap();
    let refused = &["no GPU adapter", "llvmpipe", "computes on the CPU", "--software-gpu", "--executor cpu"];
    let flags = ["run", model, "--ids", "1", "-n", "1"];
    cortiq(&[&flags[..], &["--executor", "gpu"]].concat()).fails(refused);
    let asked = run(software().args(flags).env("CMF_GPU", "wgpu"), b"");
    asked.fails(&[refused, &["CMF_GPU asks for a GPU"][..]].concat());
    cortiq(&["bench", model, "--executor", "gpu", "-p", "1", "-n", "1"]).fails(refused);
    // `0` is never, and so is silence.
    run(software().args(flags).arg("--json").env("CMF_GPU", "0"), b"").json();
    run(software().args(flags).arg("--json").env("CMF_GPU", ""), b"").json();
    run(software().args(flags).args(["--json", "--executor", "cpu"]).env("CMF_GPU", "1"), b"").json();
}

#[test]
fn interfaces_that_are_not_there() {
    let model = repository("interop/llama_gqa-vbit.cmf");
    let flags = ["run", model.to_str().unwrap(), "--ids", "1", "--executor", "gpu", "--software-gpu"];
    cortiq(&[&flags[..], &["--gpu-backend", "metal"]].concat()).fails(&["no GPU adapter", "no driver offers one"]);
    let outcome = run(software().args(flags).env("WGPU_BACKEND", "d3d12"), b"");
    outcome.fails(&["no GPU adapter", "no driver offers one", "--executor cpu"]);
}

#[test]
fn what_a_gpu_cannot_do_is_named() {
    let model = repository("interop/llama_gqa-vbit.cmf");
    let flags = ["run", model.to_str().unwrap(), "--ids", "1", "--executor", "gpu", "--software-gpu"];
    cortiq(&[&flags[..], &["--kv", "q8"]].concat()).fails(&["gpu executor", "cache of q8"]);
}

#[test]
fn a_model_beyond_the_budget_is_refused() {
    let model = repository("interop/llama_gqa-vbit.cmf");
    let flags = ["run", model.to_str().unwrap(), "--ids", "1", "--executor", "gpu", "--software-gpu"];
    let refused = &["needs", "MiB of GPU memory", "may use 1 MiB", "as asked", "--vram", "--ctx", "llama_gqa-vbit"];
    cortiq(&[&flags[..], &["--vram", "1"]].concat()).fails(refused);
    run(software().args(flags).env("CMF_GPU_VRAM_MB", "1"), b"").fails(refused);
    run(software().args(flags).args(["--vram", "4096", "-n", "1"]).env("CMF_GPU_VRAM_MB", "1"), b"").ok();
}

#[test]
fn doctor_shows_what_is_used_and_why() {
    let report = run(software().args(["doctor", "--quick", "--json"]).env("HF_TOKEN", "hf_secret"), b"").json();
    assert_eq!(keys(&report), ["configuration", "cpu", "executor", "gpu", "gpus", "version"]);
    assert!(!report.to_string().contains("hf_secret"));
    assert_eq!(report["executor"]["auto"], "cpu");
    assert!(report["executor"]["reason"].as_str().unwrap().contains("no GPU that may be used"));
    assert!(report["gpu"].as_str().unwrap().contains("must be asked for"));
    let gpu = &report["gpus"][0];
    assert_eq!((gpu["kind"].as_str(), gpu["interface"].as_str()), (Some("software"), Some("vulkan")));
    assert!(gpu["name"].as_str().unwrap().contains("llvmpipe"));
    assert!(gpu["limits"]["binding_bytes"].as_u64().unwrap() > 1 << 20);
    assert_eq!(gpu["read_bandwidth_gb_s"], Value::Null);
    assert!(gpu["kernels"].as_array().unwrap().len() > 4);
}

#[test]
fn doctor_measures_and_names_origins() {
    let mut command = software();
    command.env("CMF_GPU", "1").env("CMF_KV", "f16").env("CMF_THREADS", "1");
    let flags = ["doctor", "--software-gpu", "--threads", "2", "--vram", "100", "--json"];
    let report = run(command.args(flags), b"").json();
    assert_eq!(report["executor"]["auto"], "gpu");
    let setting = |name: &str| {
        let mut rows = report["configuration"].as_array().unwrap().iter();
        let row = rows.find(|row| row["name"] == name).unwrap_or(&Value::Null);
        [&row["value"], &row["origin"]].map(|text| text.as_str().unwrap_or("-").to_owned())
    };
    assert_eq!(setting("threads"), ["2", "--threads"]);
    assert_eq!(setting("attention cache"), ["f16", "CMF_KV"]);
    assert_eq!(setting("GPU memory in MiB"), ["100", "--vram"]);
    assert_eq!(setting("GPU"), ["on", "CMF_GPU"]);
    assert_eq!(setting("hub token")[0], "none");
    let gpu = &report["gpus"][0];
    assert_eq!(gpu["budget_bytes"], 100 << 20);
    assert!(gpu["read_bandwidth_gb_s"].as_f64().unwrap() > 0.1);
    assert!(gpu["submit_latency_us"].as_f64().unwrap() > 0.1);
    assert!(report["cpu"]["read_bandwidth_gb_s"].as_f64().unwrap() > 0.1);
}

#[test]
fn doctor_without_a_gpu() {
    let text = cortiq(&["doctor", "--quick", "--gpu-backend", "metal"]).ok();
    assert!(text.stdout.contains("GPU none (no GPU adapter"), "{}", text.stdout);
    assert!(text.stdout.contains("--executor auto is cpu"), "{}", text.stdout);
    let text = cortiq(&["doctor", "--quick", "--software-gpu"]).ok();
    for word in ["Configuration", "CPU", "GPU llvmpipe", "kernels", "The gpu executor opens: llvmpipe"] {
        assert!(text.stdout.contains(word), "no {word:?} in {}", text.stdout);
    }
}

/// A cut anywhere gives the logits of the whole model, and a note says where the parts are.
#[test]
fn a_model_shared_by_cpu_and_gpu() {
    let room = Room::new();
    let model = room.model("qwen3_moe", "f32").display().to_string();
    let flags = ["logits", &model, "--ids", "1,2,3,4,5,6,7"];
    let expected = floats(&cortiq(&[&flags[..], &["--executor", "reference"]].concat()).json()["logits"][0]);
    let last = expected.len();
    for (more, note) in [
        (&["--gpu-layers", "0"][..], "1 of 3 layers on the GPU, the head on the CPU"),
        (&["--gpu-layers", "1,2"], "2 of 3 layers on the GPU, the head on the CPU"),
        (&["--cpu-moe"], "3 of 3 layers on the GPU, the head on the GPU"),
        (&["--cpu-experts", "1"], "3 of 3 layers on the GPU, the head on the GPU"),
    ] {
        let on_gpu = ["--executor", "gpu", "--software-gpu", "--precision", "exact"];
        let outcome = cortiq(&[&flags[..], &on_gpu, more].concat()).ok();
        assert!(outcome.stderr.contains(note), "{more:?}: {}", outcome.stderr);
        let logits = floats(&outcome.json()["logits"][0]);
        let differences = logits.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        assert!(logits.len() == last && differences.fold(0.0, f64::max) <= 2e-3, "{more:?}");
    }
}

#[test]
fn wrong_layers_are_refused_by_name() {
    let model = repository("interop/llama_gqa-vbit.cmf");
    let flags = ["run", model.to_str().unwrap(), "--ids", "1", "--executor", "gpu", "--software-gpu"];
    cortiq(&[&flags[..], &["--gpu-layers", "0-99"]].concat()).fails(&["--gpu-layers", "layer 99"]);
    run(software().args(flags).env("CMF_GPU_LAYERS", "9"), b"").fails(&["CMF_GPU_LAYERS", "layer 9"]);
    run(software().args(flags).env("CMF_GPU_LAYERS", "x"), b"").fails(&["CMF_GPU_LAYERS", "`x`"]);
}

/// What auto measured is in doctor's report: every kind of work on both sides.
#[test]
fn doctor_says_where_a_model_runs() {
    let model = repository("interop/llama_gqa-vbit.cmf");
    let flags = ["doctor", model.to_str().unwrap(), "--quick", "--json"];
    let report = run(software().args(flags).arg("--software-gpu"), b"").json();
    let timings = report["model"]["timings"].as_array().unwrap();
    let works: Vec<_> = timings.iter().map(|timed| timed["work"].as_str().unwrap()).collect();
    assert_eq!(works, ["mixer", "mixer", "FFN", "FFN", "head", "head"]);
    assert!(timings.iter().all(|timed| timed["cpu_us"].as_f64().unwrap() > 0.0), "{report}");
    assert!(report["model"]["latency_us"].as_f64().unwrap() > 0.0);
    assert!(report["model"]["placement"].as_str().unwrap().contains("layers on the GPU"));
    let report = run(software().args(flags), b"").json();
    assert_eq!(report["model"]["placement"], "everything on the CPU");
}
