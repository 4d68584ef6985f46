//! MXFP4: E2M1 values with one power-of-two scale (E8M0) per 32, after the OCP Microscaling
//! Formats specification, version 1.0.

use super::nibbles;

/// Twice the E2M1 values; the scale is halved to match.
const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// `e (u8), qs[16]`; value = 2^(e − 128) · doubled[q].
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let [e, packed @ ..] = block;
    let d = half_power(*e);
    nibbles(packed, |i, q| out[i] = d * f32::from(DOUBLED[usize::from(q & 0x0f)]));
}

/// 2^(e − 128); the two smallest are subnormal.
fn half_power(e: u8) -> f32 {
    let bits = if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 };
    f32::from_bits(bits)
}
