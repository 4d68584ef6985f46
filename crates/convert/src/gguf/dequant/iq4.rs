//! The 4-bit types with a non-linear codebook: IQ4_NL and IQ4_XS.

use super::{nibbles, scale};

/// The published codebook of IQ4_NL and IQ4_XS.
const CODEBOOK: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

fn code(q: u8) -> f32 {
    f32::from(CODEBOOK[usize::from(q & 0x0f)])
}

/// `d, qs[16]`; value = d · codebook[q].
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let [d0, d1, packed @ ..] = block;
    let d = scale(*d0, *d1);
    nibbles(packed, |i, q| out[i] = d * code(q));
}

/// `d, scales_h (u16), scales_l[4], qs[128]`; 8 sub-blocks of 32; the 6-bit scale has its low
/// nibble in scales_l and its high two bits in scales_h; value = d·(scale − 32)·codebook[q].
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = scale(block[0], block[1]);
    let high = u16::from_le_bytes([block[2], block[3]]);
    let low = &block[4..8];
    let (packed, _) = block[8..].as_chunks::<16>();
    let (values, _) = out.as_chunks_mut::<32>();
    for (sub, (values, packed)) in values.iter_mut().zip(packed).enumerate() {
        let bits = (low[sub / 2] >> (4 * (sub % 2))) & 0x0f;
        let bits = u16::from(bits) | (((high >> (2 * sub)) & 3) << 4);
        let step = d * (f32::from(bits) - 32.0);
        nibbles(packed, |i, q| values[i] = step * code(q));
    }
}
