//! Times single kernels on the shapes of Qwen3-8B: products of many tokens in every variant, products of few tokens in
//! every layout, attention at several context lengths, and the choice of the best tokens. Prints a table; weights are
//! random.
//!
//! `cargo run --release -p cortiq-gpu --features lab --example kernels -- [gemm] [matvec] [attention] [top] [--software]`

#![allow(clippy::print_stdout, reason = "a table is what it is for")]

use std::sync::Arc;

use cortiq_cmf::Dtype;
use cortiq_gpu::lab::{AttentionCase, Kernel, Lab, Matrices, ProductCase, Run, TopCase};
use cortiq_gpu::{AdapterChoice, Gpu, Precision};
use cortiq_quant::{MatrixView, random_payload};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Rows and columns of the products of a layer.
const SHAPES: [(usize, usize); 3] = [(4096, 4096), (12_288, 4096), (4096, 12_288)];

/// What is timed, and for how long.
struct Plan {
    shapes: Vec<(usize, usize)>,
    repeats: u32,
    tokens: [usize; 3],
    contexts: Vec<usize>,
}

impl Plan {
    /// Whole shapes, or small ones for a device that is only pretended by a processor.
    fn new(software: bool) -> Self {
        if software {
            return Self { shapes: vec![(256, 256)], repeats: 1, tokens: [40, 64, 128], contexts: vec![128, 1024] };
        }
        Self { shapes: SHAPES.to_vec(), repeats: 20, tokens: [32, 64, 512], contexts: vec![128, 2048, 8192] }
    }
}

/// Values in -1 .. 1 that repeat after a while.
fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed | 1;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

fn line(name: &str, seconds: f64, bytes: f64, operations: f64) {
    println!(
        "{name:<52} {:>10.1} µs {:>9.1} GB/s {:>8.2} TFLOP/s",
        seconds * 1e6,
        bytes / seconds * 1e-9,
        operations / seconds * 1e-12
    );
}

/// Random weights on the device and their bytes.
fn weights(lab: &Lab, dtype: Dtype, rows: usize, cols: usize) -> Outcome<(Matrices, f64)> {
    let payload = random_payload(dtype, rows, cols, 1)?;
    let view = MatrixView::new(dtype, &payload, rows, cols)?;
    Ok((lab.upload(&[&view])?, payload.len() as f64))
}

fn gemm(lab: &mut Lab, plan: &Plan) -> Outcome<()> {
    for dtype in [Dtype::Q8Row, Dtype::Q4Block, Dtype::F16] {
        for &(rows, cols) in &plan.shapes {
            let (matrices, bytes) = weights(lab, dtype, rows, cols)?;
            for tokens in plan.tokens {
                let x = noise(tokens * cols, 7);
                for variant in lab.gemm_variants(&matrices) {
                    let case = ProductCase { kernel: Kernel::Gemm(variant), x: &x, tokens, bias: None, add: false };
                    let name = format!("{variant} {} {rows}x{cols}, {tokens} tokens", dtype.name());
                    let operations = 2.0 * (rows * cols * tokens) as f64;
                    match lab.time_product(&matrices, &case, plan.repeats) {
                        Ok(seconds) => line(&name, seconds, bytes, operations),
                        Err(error) => println!("{name:<52} {error}"),
                    }
                }
            }
        }
    }
    Ok(())
}

fn matvec(lab: &mut Lab, plan: &Plan) -> Outcome<()> {
    for dtype in Dtype::ALL {
        for &(rows, cols) in &plan.shapes {
            let (matrices, bytes) = weights(lab, dtype, rows, cols)?;
            let kernel = if matrices.takes_int8() { Kernel::MatvecInt8 } else { Kernel::Matvec };
            for tokens in [1, 4] {
                let x = noise(tokens * cols, 7);
                let case = ProductCase { kernel, x: &x, tokens, bias: None, add: false };
                let seconds = lab.time_product(&matrices, &case, 5 * plan.repeats)?;
                let name = format!("matvec {} {rows}x{cols}, {tokens} tokens", dtype.name());
                line(&name, seconds, bytes, 2.0 * (rows * cols * tokens) as f64);
            }
        }
    }
    Ok(())
}

/// Attention of Qwen3-8B: 32 query heads, 8 kv heads of 128.
fn attention_case(positions: usize, rows: usize) -> AttentionCase {
    let (heads, kv_heads, head_dim) = (32, 8, 128);
    let stored = positions * kv_heads * head_dim;
    let run = Run { positions, rows, keys: noise(stored, 3), values: noise(stored, 5) };
    AttentionCase {
        heads,
        kv_heads,
        head_dim,
        window: None,
        softcap: None,
        precision: Precision::Fast,
        runs: vec![run],
        q: noise(rows * heads * head_dim, 9),
    }
}

fn attention(lab: &mut Lab, plan: &Plan) -> Outcome<()> {
    for &context in &plan.contexts {
        for rows in [1, 4, plan.tokens[2].min(context)] {
            let case = attention_case(context, rows);
            let seconds = lab.time_attention(&case, plan.repeats)?;
            // Keys and values once per kv head; two products per visible pair of positions and query head.
            let bytes = (2 * context * case.kv_heads * case.head_dim * 2) as f64;
            let pairs: usize = (context - rows + 1..=context).sum();
            let operations = 4.0 * (pairs * case.heads * case.head_dim) as f64;
            line(&format!("attention {context} positions, {rows} rows"), seconds, bytes, operations);
        }
    }
    Ok(())
}

/// The best tokens of the vocabulary of Qwen3.
fn top(lab: &mut Lab, plan: &Plan) -> Outcome<()> {
    let vocab_size = 151_936;
    for rows in [1, 5] {
        let logits = noise(rows * vocab_size, 13);
        for slice in lab.top_slices() {
            for count in [1, 64] {
                let case = TopCase { logits: &logits, vocab_size, count, slice };
                let seconds = lab.time_top(&case, 5 * plan.repeats)?;
                let name = format!("the best {count} of {vocab_size}, slices of {slice}, {rows} rows");
                line(&name, seconds, (logits.len() * 4) as f64, 0.0);
            }
        }
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let software = arguments.iter().any(|argument| argument == "--software");
    let choice = AdapterChoice { allow_software: software, ..AdapterChoice::default() };
    let gpu = Arc::new(Gpu::open(&choice)?);
    println!("{:#?}", gpu.caps());
    let plan = Plan::new(gpu.caps().adapter.software);
    let mut lab = Lab::new(gpu);
    let wanted = |name: &str| {
        let mut parts = arguments.iter().filter(|argument| !argument.starts_with("--")).peekable();
        parts.peek().is_none() || parts.any(|part| part == name)
    };
    if wanted("gemm") {
        gemm(&mut lab, &plan)?;
    }
    if wanted("matvec") {
        matvec(&mut lab, &plan)?;
    }
    if wanted("attention") {
        attention(&mut lab, &plan)?;
    }
    if wanted("top") {
        top(&mut lab, &plan)?;
    }
    Ok(())
}
