//! The ternary types TQ1_0 and TQ2_0, super-blocks of 256.

use super::scale;

/// Powers of three that bring the wanted digit to the top of the byte.
const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// `qs[48], qh[4], d`; a byte holds up to five base-3 digits as a fraction of 256: multiplied by
/// a power of three modulo 256, its digit is `byte · 3 / 256`. The first 32 bytes give 160 values
/// (digit-major), the next 16 give 80, qh gives the last 16 (four digits each);
/// value = d · (digit − 1).
pub(super) fn tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
    let d = scale(block[52], block[53]);
    let (first, rest) = out.split_at_mut(160);
    let (second, third) = rest.split_at_mut(80);
    digits(&block[..32], d, first);
    digits(&block[32..48], d, second);
    digits(&block[48..52], d, third);
}

fn digits(packed: &[u8], d: f32, out: &mut [f32]) {
    for (values, power) in out.chunks_exact_mut(packed.len()).zip(POWERS) {
        for (value, &byte) in values.iter_mut().zip(packed) {
            let digit = (u16::from(byte.wrapping_mul(power)) * 3) >> 8;
            *value = d * (f32::from(digit) - 1.0);
        }
    }
}

/// `qs[64], d`; two bits per value; value = d · (q − 1).
pub(super) fn tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = scale(block[64], block[65]);
    for (i, value) in out.iter_mut().enumerate() {
        let q = (block[i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4))) & 3;
        *value = d * (f32::from(q) - 1.0);
    }
}
