//! Signs without special instructions.

use cortiq_quant::GROUP;

use super::super::portable::Plain;
use super::Signs;

impl Signs for Plain {
    #[inline(always)]
    fn signs(source: [u8; 4]) -> [u8; GROUP] {
        let mut codes = [0; GROUP];
        for (octet, byte) in codes.as_chunks_mut::<8>().0.iter_mut().zip(source) {
            for (k, code) in octet.iter_mut().enumerate() {
                *code = byte >> k << 1 & 2;
            }
        }
        codes
    }
}
