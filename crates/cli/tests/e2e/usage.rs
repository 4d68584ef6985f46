//! Wrong usage: exit code 2.

use crate::support::{Room, cortiq, repository};

#[test]
fn wrong_flags() {
    let model = repository("interop/llama_gqa-vbit.cmf");
    let model = model.to_str().unwrap();
    let cases: &[(&[&str], &[&str])] = &[
        (&["dance"], &["dance"]),
        (&["run"], &["MODEL"]),
        (&["run", model, "--ids", "a,b"], &["--ids", "`a`"]),
        (&["run", model, "--ids", "1,,2"], &["--ids"]),
        (&["run", model, "--ids", "1", "-p", "x"], &["--ids", "--prompt"]),
        (&["run", model, "--ids", "1", "--raw"], &["--raw"]),
        (&["run", model, "-p", "x", "--raw", "--system", "y"], &["--raw", "--system"]),
        (&["run", model, "-p", "x", "--greedy", "--temperature", "1"], &["--greedy", "--temperature"]),
        (&["run", model, "-p", "x", "--temperature", "-3"], &["temperature", "-3"]),
        (&["run", model, "-p", "x", "--top-p", "1.5"], &["top_p"]),
        (&["run", model, "-p", "x", "--logit-bias", "7"], &["ID=X"]),
        (&["run", model, "-p", "x", "--stop", ""], &["--stop", "empty"]),
        (&["run", model, "-p", "x", "-n", "-1"], &["-1"]),
        (&["run", model, "-p", "x", "--ctx", "0"], &["--ctx"]),
        (&["run", model, "-p", "x", "--threads", "0"], &["--threads"]),
        (&["run", model, "-p", "x", "--executor", "abacus"], &["abacus"]),
        (&["run", model, "-p", "x", "--kv", "q4"], &["--kv", "q4", "f32", "f16", "q8"]),
        (&["run", model, "-p", "x", "--precision", "double"], &["--precision", "exact", "fast"]),
        (&["run", model, "-p", "x", "--gpu-backend", "gl"], &["--gpu-backend", "vulkan", "dx12", "metal"]),
        (&["run", model, "-p", "x", "--vram", "0"], &["--vram"]),
        (&["bench", model, "--vram", "8GB"], &["--vram", "8GB"]),
        (&["run", model, "-p", "x", "--executor", "cpu", "--vram", "100"], &["--vram", "GPU"]),
        (&["run", model, "-p", "x", "--executor", "reference", "--cpu-moe"], &["--cpu-moe", "GPU"]),
        (&["run", model, "-p", "x", "--gpu-layers", "5-2"], &["--gpu-layers", "5-2"]),
        (&["run", model, "-p", "x", "--cpu-moe", "--cpu-experts", "1"], &["--cpu-moe", "--cpu-experts"]),
        (&["logits", model], &["--ids"]),
        (&["logits", model, "--ids", "x"], &["`x`"]),
        (&["ppl", model], &["--file"]),
        (&["ppl", model, "-f", "x", "--window", "1"], &["--window"]),
        (&["ppl", model, "-f", "x", "--window", "8", "--stride", "9"], &["--stride", "9"]),
        (&["ppl", model, "-f", "x", "--stride", "0"], &["--stride"]),
        (&["ppl", model, "-f", "x", "--prefix-id", "bos"], &["`bos`"]),
        (&["bench"], &["MODEL"]),
        (&["bench", model, "--shape", "qwen3-8b", "--quant", "q8"], &["--shape"]),
        (&["bench", "--shape", "qwen3-8b"], &["--quant"]),
        (&["bench", "--shape", "qwen9", "--quant", "q8"], &["qwen9", "qwen3-8b"]),
        (&["bench", "--shape", "qwen3-8b", "--quant", "q9"], &["q9"]),
        (&["bench", model, "-p", "0", "-n", "0"], &["nothing"]),
        (&["bench", model, "-r", "0"], &["-r"]),
        (&["completions", "cmd"], &["cmd"]),
        (&["tokenize"], &["MODEL"]),
    ];
    for (args, words) in cases {
        cortiq(*args).misused(words);
    }
}

#[test]
fn wrong_conversions_touch_nothing() {
    let room = Room::new();
    let source = repository("fixtures/models/llama_gqa");
    let (source, output) = (source.to_str().unwrap().to_owned(), room.path("out.cmf").display().to_string());
    let cases: &[(&[&str], &[&str])] = &[
        (&["--quant", "q3"], &["q3", "q8_2f"]),
        (&["--mean-bits", "9"], &["9", "3 to 8"]),
        (&["--tensor", "*=q3"], &["q3"]),
        (&["--tensor", "*.mlp.*"], &["GLOB=DTYPE"]),
        (&["--tensor", "[a=q8"], &["[a"]),
        (&["--policy", "v0.3"], &["v0.3", "v0.4.0"]),
    ];
    for (flags, words) in cases {
        for command in ["convert", "import-gguf"] {
            cortiq([&[command, &source, "-o", &output], *flags].concat()).misused(words);
        }
    }
    cortiq(["convert", &source]).misused(&["--output"]);
    assert!(room.names().is_empty());
}
