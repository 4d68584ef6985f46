//! Words to bytes without special instructions.

use cortiq_quant::GROUP;

use super::super::portable::Plain;
use super::Words;

impl Words for Plain {
    #[inline(always)]
    fn from_words(words: [u64; 4]) -> [u8; GROUP] {
        let mut codes = [0; GROUP];
        for (octet, word) in codes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *octet = word.to_le_bytes();
        }
        codes
    }
}
