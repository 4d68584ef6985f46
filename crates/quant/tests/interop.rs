//! The 2-D tensors of the files in interop/, made by the public converter from the checkpoints in fixtures/:
//! encoding the checkpoint's matrix must give the very bytes (policy: docs/cmf-format.md §16).

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use cortiq_cmf::{CmfFile, Dtype};
use cortiq_quant::{Encoding, MatrixView, decode, encode, f16_to_f32, f32_to_f16};
use safetensors::{Dtype as SourceDtype, SafeTensors};

/// Names that stay f16 whatever the encoding.
const SENSITIVE: [&str; 4] =
    ["linear_attn.in_proj_a.weight", "linear_attn.in_proj_b.weight", "mlp.gate.weight", "shared_expert_gate.weight"];

struct Source {
    shape: Vec<usize>,
    values: Vec<f32>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn to_f32(dtype: SourceDtype, data: &[u8]) -> Vec<f32> {
    match dtype {
        SourceDtype::F32 => data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        SourceDtype::F16 => data.as_chunks().0.iter().map(|b| f16_to_f32(u16::from_le_bytes(*b))).collect(),
        SourceDtype::BF16 => {
            let wide = |b: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
            data.as_chunks().0.iter().map(wide).collect()
        }
        other => panic!("fixture with {other:?}"),
    }
}

fn checkpoint(model: &str) -> HashMap<String, Source> {
    let folder = root().join("fixtures/models").join(model);
    let mut tensors = HashMap::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|e| e != "safetensors") {
            continue;
        }
        let bytes = std::fs::read(path).unwrap();
        for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            let source = Source { shape: tensor.shape().to_vec(), values: to_f32(tensor.dtype(), tensor.data()) };
            assert!(tensors.insert(name, source).is_none());
        }
    }
    tensors
}

/// The encoding that §16 gives a tensor.
fn policy(wanted: &Encoding, name: &str, shape: &[usize]) -> Encoding {
    let [rows, cols] = *shape else {
        return Encoding::F16;
    };
    if rows * cols < 32 || SENSITIVE.iter().any(|end| name.ends_with(end)) {
        Encoding::F16
    } else if wanted.accepts(rows, cols) {
        wanted.clone()
    } else {
        Encoding::Q8_2f
    }
}

#[test]
fn files_of_the_public_converter() {
    for (model, quants) in [
        ("qwen3_5", ["q8", "q8_2f", "q4", "q4t", "vbit", "q1", "q1p", "q1s"].as_slice()),
        ("llama_gqa", &["vbit"]),
        ("qwen3_moe", &["vbit"]),
    ] {
        let source = checkpoint(model);
        for quant in quants {
            compare(model, quant, &source);
        }
    }
}

fn compare(model: &str, quant: &str, source: &HashMap<String, Source>) {
    let wanted = Encoding::parse(quant, Encoding::VBIT_DEFAULT_MEAN_BITS).unwrap();
    let file = CmfFile::open(&root().join(format!("interop/{model}-{quant}.cmf"))).unwrap();
    let mut quantised = 0;
    for (index, info) in file.tensors().iter().enumerate() {
        let name = &info.name;
        let tensor = &source[name];
        let shape: Vec<usize> = info.shape.iter().map(|d| *d as usize).collect();
        assert_eq!(shape, tensor.shape, "{model} {quant} {name}");
        let enc = policy(&wanted, name, &shape);
        assert_eq!(info.dtype, enc.dtype(), "{model} {quant} {name}");
        let payload = file.data(index).unwrap();
        let (rows, cols) = match shape[..] {
            [rows, cols] => (rows, cols),
            _ => (1, tensor.values.len()),
        };
        let ours = encode(&enc, &tensor.values, rows, cols).unwrap();
        assert!(ours == payload, "{model} {quant} {name}: bytes differ");
        quantised += usize::from(info.dtype != Dtype::F16);
        check_views(info.dtype, payload, rows, cols, &tensor.values);
    }
    assert!(quantised >= 15, "{model} {quant}: {quantised} quantised tensors");
}

/// Rows of the view equal the whole decode, and the codec loses about as much as its width allows.
fn check_views(dtype: Dtype, payload: &[u8], rows: usize, cols: usize, values: &[f32]) {
    let decoded = decode(dtype, payload, rows, cols).unwrap();
    let view = MatrixView::new(dtype, payload, rows, cols).unwrap();
    let mut row = vec![0.0; cols];
    for (r, want) in decoded.chunks(cols).enumerate() {
        view.decode_row(r, &mut row);
        assert_eq!(row, want);
    }
    let sum = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
        values.iter().zip(&decoded).map(|(w, d)| f(f64::from(*w), f64::from(*d))).sum()
    };
    let relative = (sum(&|w, d| (w - d).powi(2)) / sum(&|w, _| w * w).max(1e-30)).sqrt();
    let bound = match dtype {
        Dtype::F32 => 0.0,
        Dtype::F16 => 1e-3,
        Dtype::Bf16 => 4e-3,
        Dtype::Q8Row | Dtype::Q8_2f => 0.02,
        Dtype::Q4Block | Dtype::Q4Tiled => 0.12,
        Dtype::Vbit | Dtype::VbitRo => 0.15,
        Dtype::Q1 | Dtype::Q1s | Dtype::Q1t => 1.1,
    };
    assert!(relative <= bound, "{}: {relative}", dtype.name());
}

#[test]
fn half_rule_is_the_containers() {
    for half in 0..0x7C00u16 {
        assert_eq!(f32_to_f16(cortiq_cmf::f16_to_f32(half)), half);
    }
}
