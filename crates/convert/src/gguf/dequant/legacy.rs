//! The block types of 32 values: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.

use super::{nibbles, scale};

/// `d, qs[16]`; value = d · (q − 8).
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let [d0, d1, packed @ ..] = block;
    let d = scale(*d0, *d1);
    nibbles(packed, |i, q| out[i] = d * (f32::from(q) - 8.0));
}

/// `d, m, qs[16]`; value = d · q + m.
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let [d0, d1, m0, m1, packed @ ..] = block;
    let (d, m) = (scale(*d0, *d1), scale(*m0, *m1));
    nibbles(packed, |i, q| out[i] = d * f32::from(q) + m);
}

/// `d, qh (u32), qs[16]`; bit i of qh is bit 4 of value i; value = d · (q − 16).
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let [d0, d1, h0, h1, h2, h3, packed @ ..] = block;
    let d = scale(*d0, *d1);
    let high = u32::from_le_bytes([*h0, *h1, *h2, *h3]);
    nibbles(packed, |i, q| out[i] = d * (f32::from(q | fifth_bit(high, i)) - 16.0));
}

/// `d, m, qh (u32), qs[16]`; value = d · q + m.
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let [d0, d1, m0, m1, h0, h1, h2, h3, packed @ ..] = block;
    let (d, m) = (scale(*d0, *d1), scale(*m0, *m1));
    let high = u32::from_le_bytes([*h0, *h1, *h2, *h3]);
    nibbles(packed, |i, q| out[i] = d * f32::from(q | fifth_bit(high, i)) + m);
}

/// `d, qs[32] (i8)`; value = d · q.
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let [d0, d1, packed @ ..] = block;
    let d = scale(*d0, *d1);
    for (value, &q) in out.iter_mut().zip(packed) {
        *value = f32::from(q.cast_signed()) * d;
    }
}

fn fifth_bit(high: u32, i: usize) -> u8 {
    (((high >> i) & 1) as u8) << 4
}
