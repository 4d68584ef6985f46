//! Expansion of GGUF tensor types to f32, in parallel over blocks.
//!
//! Layouts are the published ones of each `ggml` block type; all integers are little-endian and
//! scales are binary16 unless said otherwise. `tests/data/gguf_dequant.json` holds values of the
//! PyPI package `gguf` for every type; the results here are equal to the bit.

mod float;
mod iq4;
mod k_quant;
mod legacy;
mod mxfp4;
mod q1_0;
mod ternary;

use half::f16;
use rayon::prelude::*;

use super::GgufError;
use super::ggml_type::GgmlType;

/// Values that one task of the thread pool expands at least.
const TASK_VALUES: usize = 1 << 14;

/// Expands `data`, whole blocks of type `ggml_type`, to f32 in storage order.
///
/// # Errors
/// [`GgufError::Malformed`] when `data` is not a whole number of blocks.
pub fn dequantize(ggml_type: GgmlType, data: &[u8]) -> Result<Vec<f32>, GgufError> {
    let bytes = ggml_type.block_bytes();
    if !data.len().is_multiple_of(bytes) {
        let reason = format!("{} bytes are not a whole number of blocks of {bytes}", data.len());
        return Err(GgufError::malformed(format!("{} data", ggml_type.name()), reason));
    }
    let values = (data.len() / bytes)
        .checked_mul(ggml_type.block_len())
        .ok_or_else(|| GgufError::malformed("tensor data", "the number of values overflows"))?;
    let mut out = vec![0.0; values];
    let o = out.as_mut_slice();
    match ggml_type {
        GgmlType::F32 => blocks(data, o, float::f32_value),
        GgmlType::F16 => blocks(data, o, float::f16_value),
        GgmlType::Bf16 => blocks(data, o, float::bf16_value),
        GgmlType::Q4_0 => blocks(data, o, legacy::q4_0),
        GgmlType::Q4_1 => blocks(data, o, legacy::q4_1),
        GgmlType::Q5_0 => blocks(data, o, legacy::q5_0),
        GgmlType::Q5_1 => blocks(data, o, legacy::q5_1),
        GgmlType::Q8_0 => blocks(data, o, legacy::q8_0),
        GgmlType::Q2K => blocks(data, o, k_quant::q2_k),
        GgmlType::Q3K => blocks(data, o, k_quant::q3_k),
        GgmlType::Q4K => blocks(data, o, k_quant::q4_k),
        GgmlType::Q5K => blocks(data, o, k_quant::q5_k),
        GgmlType::Q6K => blocks(data, o, k_quant::q6_k),
        GgmlType::Q8K => blocks(data, o, k_quant::q8_k),
        GgmlType::Iq4Nl => blocks(data, o, iq4::iq4_nl),
        GgmlType::Iq4Xs => blocks(data, o, iq4::iq4_xs),
        GgmlType::Tq1_0 => blocks(data, o, ternary::tq1_0),
        GgmlType::Tq2_0 => blocks(data, o, ternary::tq2_0),
        GgmlType::Mxfp4 => blocks(data, o, mxfp4::mxfp4),
        GgmlType::Q1_0 => blocks(data, o, q1_0::q1_0),
    }
    Ok(out)
}

/// Runs `expand` over every block of `B` bytes and its `N` values.
fn blocks<const B: usize, const N: usize>(data: &[u8], out: &mut [f32], expand: fn(&[u8; B], &mut [f32; N])) {
    let (sources, _) = data.as_chunks::<B>();
    let (targets, _) = out.as_chunks_mut::<N>();
    targets
        .par_iter_mut()
        .with_min_len((TASK_VALUES / N).max(1))
        .zip(sources.par_iter())
        .for_each(|(target, source)| expand(source, target));
}

/// The binary16 value in two bytes.
fn scale(low: u8, high: u8) -> f32 {
    f16::from_le_bytes([low, high]).to_f32()
}

/// Low nibble first: value `i` of 16 is in the low half of byte `i`, value `16 + i` in the high.
fn nibbles(packed: &[u8], mut store: impl FnMut(usize, u8)) {
    for (i, &byte) in packed.iter().enumerate() {
        store(i, byte & 0x0f);
        store(packed.len() + i, byte >> 4);
    }
}
