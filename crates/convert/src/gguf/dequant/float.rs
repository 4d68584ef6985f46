//! F32, F16 and BF16: one value per "block".

use half::{bf16, f16};

/// One little-endian binary32.
pub(super) fn f32_value(block: &[u8; 4], out: &mut [f32; 1]) {
    *out = [f32::from_le_bytes(*block)];
}

/// One little-endian binary16.
pub(super) fn f16_value(block: &[u8; 2], out: &mut [f32; 1]) {
    *out = [f16::from_le_bytes(*block).to_f32()];
}

/// One little-endian bfloat16.
pub(super) fn bf16_value(block: &[u8; 2], out: &mut [f32; 1]) {
    *out = [bf16::from_le_bytes(*block).to_f32()];
}
