//! Random weights of a named shape, for benchmarks without a file.

use std::collections::HashMap;

use anyhow::{Context, bail};
use cortiq_cmf::Dtype;
use cortiq_model::{NamedShape, OwnedTensor, OwnedWeights, tensors_of};
use cortiq_quant::{Encoding, random_payload};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::output::human_bytes;

/// Rows from which the size of a matrix is projected where the dtype's size depends on the content.
const SAMPLE_ROWS: usize = 64;

/// One tensor to be made.
struct Plan {
    name: String,
    dims: Vec<usize>,
    dtype: Dtype,
    bytes: u64,
}

/// Random weights of `shape` whose matrices are stored as a conversion with `encoding` would store them, after checking
/// that they and `extra` bytes beside them fit into the memory that is free now. Returns their total size too.
pub fn random_weights(shape: &NamedShape, encoding: &Encoding, extra: u64) -> anyhow::Result<(OwnedWeights, u64)> {
    let plans = tensors_of(shape)
        .into_iter()
        .map(|(name, dims)| plan(name, dims, encoding))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let total = plans.iter().map(|p| p.bytes).fold(0, u64::saturating_add);
    check_memory(total.saturating_add(extra), &format!("{} in {}", shape.name, encoding.dtype()))?;
    let mut weights = OwnedWeights::new();
    let mut real = 0;
    // Layers share their numbers, not their memory: making billions of random ones takes minutes, copying seconds.
    let mut made: HashMap<(Vec<usize>, Dtype), Vec<u8>> = HashMap::new();
    for (seed, plan) in (0u64..).zip(plans) {
        let bytes = match (plan.dims.as_slice(), made.get(&(plan.dims.clone(), plan.dtype))) {
            (_, Some(same)) => same.clone(),
            (&[rows, cols], None) => random_payload(plan.dtype, rows, cols, seed).with_context(|| plan.name.clone())?,
            (_, None) => near_one(plan.dims.iter().product(), seed),
        };
        made.entry((plan.dims.clone(), plan.dtype)).or_insert_with(|| bytes.clone());
        real += bytes.len() as u64;
        let shape = plan.dims.iter().map(|&d| u32::try_from(d)).collect::<Result<_, _>>().context("shape")?;
        weights.insert(plan.name, OwnedTensor { dtype: plan.dtype, shape, bytes });
    }
    Ok((weights, real))
}

fn plan(name: String, dims: Vec<usize>, encoding: &Encoding) -> anyhow::Result<Plan> {
    let (dtype, bytes) = match *dims.as_slice() {
        [rows, cols] => {
            let dtype = matrix_dtype(&name, rows, cols, encoding);
            (dtype, payload_len(dtype, rows, cols)?)
        }
        _ => (Dtype::F32, 4 * dims.iter().product::<usize>() as u64),
    };
    Ok(Plan { name, dims, dtype, bytes })
}

/// The dtype of a matrix, by the rules of the default storage policy.
fn matrix_dtype(name: &str, rows: usize, cols: usize, encoding: &Encoding) -> Dtype {
    // What the policy keeps as it is: routers, and the small projections of decays and gates.
    const KEPT: [&str; 4] = [".mlp.gate.", ".in_proj_a.", ".in_proj_b.", ".shared_expert_gate."];
    if KEPT.iter().any(|part| name.contains(part)) {
        return Dtype::Bf16;
    }
    let embedding_or_head = name.starts_with("model.embed_tokens.") || name.starts_with("lm_head.");
    let wide = matches!(encoding, Encoding::F32 | Encoding::F16 | Encoding::Bf16 | Encoding::Q8Row | Encoding::Q8_2f);
    let whole_groups = cols.is_multiple_of(cortiq_quant::GROUP) || wide;
    if (embedding_or_head && !wide) || !whole_groups || !encoding.accepts(rows, cols) {
        return Dtype::Q8_2f;
    }
    encoding.dtype()
}

/// Bytes of a matrix; projected from a few rows where only the content decides.
fn payload_len(dtype: Dtype, rows: usize, cols: usize) -> anyhow::Result<u64> {
    let shape = [u32::try_from(rows)?, u32::try_from(cols)?];
    if let Some(len) = dtype.fixed_len(&shape)? {
        return Ok(len);
    }
    let sample = rows.clamp(1, SAMPLE_ROWS);
    let len = random_payload(dtype, sample, cols, 0)?.len() as u64;
    Ok((len * rows as u64).div_ceil(sample as u64))
}

/// `n` values of f32 between 0.95 and 1.05, as norm weights are.
fn near_one(n: usize, seed: u64) -> Vec<u8> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut value = || 0.95 + 0.1 * (rng.next_u32() >> 8) as f32 / (1 << 24) as f32;
    (0..n).flat_map(|_| value().to_le_bytes()).collect()
}

/// Fails when `needed` bytes are not free. Where the system does not say what is free, everything passes.
pub fn check_memory(needed: u64, what: &str) -> anyhow::Result<()> {
    match available_memory() {
        Some(free) if needed > free => {
            bail!("{what} needs {} of memory, but only {} are free", human_bytes(needed), human_bytes(free))
        }
        _ => Ok(()),
    }
}

/// Bytes that this process can still take: what the system has, or what its container leaves.
fn available_memory() -> Option<u64> {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let free = system.available_memory();
    let of_container = system
        .cgroup_limits()
        .filter(|limits| limits.total_memory > 0)
        .map(|limits| limits.total_memory.saturating_sub(limits.rss));
    Some(of_container.map_or(free, |limit| limit.min(free))).filter(|&bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cortiq_model::{Weights, named_shape};

    fn small() -> NamedShape {
        NamedShape {
            num_layers: 2,
            hidden_size: 64,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            intermediate_size: 80,
            vocab_size: 100,
            ..named_shape("qwen3-8b").unwrap()
        }
    }

    #[test]
    fn stored_as_a_conversion_would() {
        let dtype = |weights: &OwnedWeights, name: &str| weights.dtype(weights.find(name).unwrap()).unwrap();
        let (weights, bytes) = random_weights(&small(), &Encoding::Q4Block, 0).unwrap();
        assert_eq!(dtype(&weights, "model.embed_tokens.weight"), Dtype::Q8_2f);
        assert_eq!(dtype(&weights, "lm_head.weight"), Dtype::Q8_2f);
        assert_eq!(dtype(&weights, "model.layers.1.self_attn.k_proj.weight"), Dtype::Q4Block);
        // 80 columns are no whole groups.
        assert_eq!(dtype(&weights, "model.layers.1.mlp.down_proj.weight"), Dtype::Q8_2f);
        assert_eq!(dtype(&weights, "model.norm.weight"), Dtype::F32);
        let all: usize = tensors_of(&small())
            .iter()
            .map(|(name, _)| weights.bytes(weights.find(name).unwrap()).unwrap().len())
            .sum();
        assert_eq!(bytes, all as u64);
    }

    #[test]
    fn projected_sizes_are_close() {
        for dtype in [Dtype::Vbit, Dtype::VbitRo, Dtype::Q1s, Dtype::Q1t, Dtype::Q4Tiled] {
            let real = random_payload(dtype, 4096, 256, 7).unwrap().len() as f64;
            let ratio = payload_len(dtype, 4096, 256).unwrap() as f64 / real;
            assert!((0.85..1.2).contains(&ratio), "{dtype}: {ratio}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let error = check_memory(u64::MAX, "a giant").unwrap_err().to_string();
        assert!(error.starts_with("a giant needs 18446744.1 TB"), "{error}");
        assert!(check_memory(0, "nothing").is_ok());
    }
}
