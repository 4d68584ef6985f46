//! Codes of a few bits without special instructions.

use cortiq_quant::GROUP;

use super::super::portable::Plain;
use super::{Packed, WINDOW};

impl Packed for Plain {
    #[inline(always)]
    fn bits<const B: usize>(source: &[u8; WINDOW], middle: i8) -> [u8; GROUP] {
        let mut codes = [0; GROUP];
        for (octet, packed) in codes.as_chunks_mut::<8>().0.iter_mut().zip(source.chunks_exact(B)) {
            let word = packed.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
            for (k, code) in octet.iter_mut().enumerate() {
                *code = ((word >> (B * (7 - k))) as u8 & (((1u16 << B) - 1) as u8)).wrapping_sub(middle as u8);
            }
        }
        codes
    }
}
