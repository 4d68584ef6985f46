//! Q1_0: one sign bit per value, one scale per 128.

use super::scale;

/// `d, qs[16]`; bit `i % 8` of byte `i / 8`: set means +d, clear means −d.
pub(super) fn q1_0(block: &[u8; 18], out: &mut [f32; 128]) {
    let [d0, d1, bits @ ..] = block;
    let d = scale(*d0, *d1);
    for (i, value) in out.iter_mut().enumerate() {
        *value = if (bits[i / 8] >> (i % 8)) & 1 == 1 { d } else { -d };
    }
}
