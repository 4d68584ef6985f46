//! Four bits without special instructions.

use cortiq_quant::GROUP;

use super::super::portable::Plain;
use super::Nibbles;

impl Nibbles for Plain {
    #[inline(always)]
    fn nibbles(source: &[u8; 16]) -> [u8; GROUP] {
        let mut codes = [0; GROUP];
        for (pair, byte) in codes.as_chunks_mut::<2>().0.iter_mut().zip(source) {
            *pair = [byte & 15, byte >> 4];
        }
        codes
    }
}
