//! The 4-bit group that q4_block and q4_tiled share: byte k holds element 2k low and 2k+1 high, offset by 8
//! (docs/cmf-format.md §7.4).

use crate::common::{GROUP, round_clamp};
use crate::fit::Fit;

/// Bytes of the codes of one group.
pub(crate) const CODE_BYTES: usize = GROUP / 2;

/// Encodes up to 32 values, missing ones as zero. Returns the f16 bits of the scale.
pub(crate) fn encode_group(values: &[f32], fit: Fit, codes: &mut [u8; CODE_BYTES]) -> u16 {
    let mut padded = [0.0; GROUP];
    let group = match <&[f32; GROUP]>::try_from(values) {
        Ok(group) => group,
        Err(_) => {
            for (to, from) in padded.iter_mut().zip(values) {
                *to = *from;
            }
            &padded
        }
    };
    let (bits, s) = fit.group_scale(group, -8.0, 7.0, 7.0);
    let mut nibbles = [0u8; GROUP];
    for (nibble, v) in nibbles.iter_mut().zip(group) {
        *nibble = (round_clamp(v / s, -8.0, 7.0) + 8) as u8;
    }
    for (code, pair) in codes.iter_mut().zip(nibbles.as_chunks::<2>().0) {
        *code = pair[0] | pair[1] << 4;
    }
    bits
}

/// Decodes one group: w = (nibble - 8) * s.
#[inline(always)]
pub(crate) fn decode_group(codes: &[u8; CODE_BYTES], s: f32, out: &mut [f32; GROUP]) {
    for (out, code) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
        out[0] = (i32::from(code & 15) - 8) as f32 * s;
        out[1] = (i32::from(code >> 4) - 8) as f32 * s;
    }
}
