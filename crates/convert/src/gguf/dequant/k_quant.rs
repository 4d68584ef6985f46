//! The super-block types of 256 values with 6-, 4- or 8-bit sub-scales: Q2_K … Q6_K, Q8_K.
//!
//! Index arithmetic below runs over constants only: `half` 0..2, `group` 0..4, `lane` 0..32.

use super::scale;

/// `scales[16], qs[64], d, dmin`; 16 sub-blocks of 16; a scale byte holds the scale in its low
/// nibble and the minimum in its high nibble; value = d·scale·q − dmin·min.
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, qs) = (&block[..16], &block[16..80]);
    let (d, dmin) = (scale(block[80], block[81]), scale(block[82], block[83]));
    for (i, value) in out.iter_mut().enumerate() {
        let (half, group, lane) = position(i);
        let q = (qs[half * 32 + lane] >> (2 * group)) & 3;
        let sub = scales[i / 16];
        *value = d * f32::from(sub & 0x0f) * f32::from(q) - dmin * f32::from(sub >> 4);
    }
}

/// `hmask[32], qs[64], scales[12], d`; 16 sub-blocks of 16 with signed 6-bit scales; bit
/// `4·half + group` of hmask is the third bit of the value, inverted in weight: a clear bit
/// subtracts 4; value = d·(scale − 32)·q.
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (hmask, qs, packed) = (&block[..32], &block[32..96], &block[96..108]);
    let d = scale(block[108], block[109]);
    for (i, value) in out.iter_mut().enumerate() {
        let (half, group, lane) = position(i);
        let low = (qs[half * 32 + lane] >> (2 * group)) & 3;
        let high = (hmask[lane] >> (4 * half + group)) & 1;
        let q = f32::from(low) - if high == 1 { 0.0 } else { 4.0 };
        *value = d * (f32::from(six_bit_scale(packed, i / 16)) - 32.0) * q;
    }
}

/// `d, dmin, scales[12], qs[128]`; 8 sub-blocks of 32; value = d·scale·q − dmin·min.
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (scale(block[0], block[1]), scale(block[2], block[3]));
    let (scales, qs) = (&block[4..16], &block[16..]);
    for (sub, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (step, offset) = scaled_pair(d, dmin, scales, sub);
        for (lane, value) in values.iter_mut().enumerate() {
            let q = (qs[sub / 2 * 32 + lane] >> (4 * (sub % 2))) & 0x0f;
            *value = step * f32::from(q) - offset;
        }
    }
}

/// `d, dmin, scales[12], qh[32], qs[128]`; bit `sub` of qh is the fifth bit of the value;
/// value = d·scale·q − dmin·min.
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (scale(block[0], block[1]), scale(block[2], block[3]));
    let (scales, qh, qs) = (&block[4..16], &block[16..48], &block[48..]);
    for (sub, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (step, offset) = scaled_pair(d, dmin, scales, sub);
        for (lane, value) in values.iter_mut().enumerate() {
            let low = (qs[sub / 2 * 32 + lane] >> (4 * (sub % 2))) & 0x0f;
            let high = (qh[lane] >> sub) & 1;
            *value = step * f32::from(low | (high << 4)) - offset;
        }
    }
}

/// `ql[128], qh[64], scales[16] (i8), d`; 16 sub-blocks of 16; value = d·scale·(q − 32).
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (ql, qh, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = scale(block[208], block[209]);
    for (i, value) in out.iter_mut().enumerate() {
        let (half, group, lane) = position(i);
        let low = (ql[half * 64 + group % 2 * 32 + lane] >> (4 * (group / 2))) & 0x0f;
        let high = (qh[half * 32 + lane] >> (2 * group)) & 3;
        let q = f32::from(low | (high << 4)) - 32.0;
        *value = d * f32::from(scales[i / 16].cast_signed()) * q;
    }
}

/// `d (f32), qs[256] (i8), sums[16] (i16)`; the sums only serve dot products; value = d·q.
pub(super) fn q8_k(block: &[u8; 292], out: &mut [f32; 256]) {
    let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    for (value, &q) in out.iter_mut().zip(&block[4..260]) {
        *value = d * f32::from(q.cast_signed());
    }
}

/// Half of 128, group of 32 inside it, lane inside the group.
fn position(i: usize) -> (usize, usize, usize) {
    (i / 128, i / 32 % 4, i % 32)
}

/// Scale `k` of 16 from the 12 bytes of Q3_K: the low four bits are in the nibbles of the first
/// eight bytes, the high two bits in the last four bytes.
fn six_bit_scale(packed: &[u8], k: usize) -> u8 {
    let low = if k < 8 { packed[k] & 0x0f } else { packed[k - 8] >> 4 };
    let high = (packed[8 + k % 4] >> (2 * (k / 4))) & 3;
    low | (high << 4)
}

/// `(d·scale, dmin·min)` of sub-block `k` of 8 from the 12 bytes of Q4_K and Q5_K.
fn scaled_pair(d: f32, dmin: f32, packed: &[u8], k: usize) -> (f32, f32) {
    let (step, offset) = if k < 4 {
        (packed[k] & 0x3f, packed[k + 4] & 0x3f)
    } else {
        let low = packed[k + 4];
        ((low & 0x0f) | (packed[k - 4] >> 6 << 4), (low >> 4) | (packed[k] >> 6 << 4))
    };
    (d * f32::from(step), dmin * f32::from(offset))
}
