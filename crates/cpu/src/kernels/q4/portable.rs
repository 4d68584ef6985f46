//! Four bits without special instructions.

use cortiq_quant::GROUP;

use super::super::portable::Plain;
use super::Nibbles;

impl Nibbles for Plain {
    #[inline(always)]
    fn nibbles(source: &[u8; 16]) -> [u8; GROUP] {
        let mut codes = [0; GROUP];
        for (k, byte) in source.iter().enumerate() {
            (codes[k], codes[GROUP / 2 + k]) = (byte & 15, byte >> 4);
        }
        codes
    }
}
