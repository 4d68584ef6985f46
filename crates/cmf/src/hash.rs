//! hash64 (docs/cmf-format.md §8), the cryptographic digest (§8.1) and half floats (§6).

/// The finaliser of MurmurHash3 (public domain, Austin Appleby).
fn mix(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    x ^= x >> 33;
    x = x.wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    x ^ (x >> 33)
}

/// The format's own 64-bit hash, §8. It finds accidents, not attacks: words can be swapped
/// and collisions are easy to make. [`blake3_hex`] is the digest to trust.
#[must_use]
pub fn hash64(data: &[u8]) -> u64 {
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut acc = 0u64;
    let mut salt = 0u64;
    let (words, rest) = data.as_chunks::<8>();
    for word in words {
        acc ^= mix(u64::from_le_bytes(*word)) ^ salt;
        salt = salt.wrapping_add(STEP);
    }
    if !rest.is_empty() {
        let mut last = [0u8; 8];
        for (to, from) in last.iter_mut().zip(rest) {
            *to = *from;
        }
        acc ^= mix(u64::from_le_bytes(last)) ^ salt;
    }
    mix(acc ^ data.len() as u64)
}

/// BLAKE3 of the data as 64 lower-case hex digits.
#[must_use]
pub fn blake3_hex(data: &[u8]) -> String {
    blake3::hash(data).to_hex().to_string()
}

/// Value of an IEEE binary16 bit pattern, exactly; the payload of a NaN is shifted up by
/// 13 bits. §6.
#[must_use]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let exponent = u32::from(bits >> 10) & 0x1F;
    let mantissa = u32::from(bits & 0x3FF);
    let magnitude = match exponent {
        0 => {
            // A subnormal is mantissa * 2^-24; both factors are exact in f32.
            let value = mantissa as f32 * f32::from_bits(0x3380_0000);
            value.to_bits()
        }
        31 => 0x7F80_0000 | (mantissa << 13),
        _ => ((exponent + 112) << 23) | (mantissa << 13),
    };
    f32::from_bits(sign | magnitude)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash64_matches_the_vectors() {
        let all: Vec<u8> = (0..=255).collect();
        let cases: [(&[u8], u64); 11] = [
            (b"", 0),
            (&[0], 0xb456_bcfc_34c2_cb2c),
            (b"a", 0x247f_1eae_cb8b_e39a),
            (b"CMF", 0xb59a_a39a_0740_33ec),
            (b"1234567", 0xfb54_ac14_a05e_8b70),
            (b"12345678", 0x7d52_a777_527d_ac97),
            (b"123456789", 0x186f_5e62_7dd4_1972),
            (b"0123456789abcdef", 0x30d4_0131_0062_ea9f),
            (&all, 0x9955_bb87_6c07_06bf),
            (&[0; 64], 0xdf8f_2787_2629_1401),
            (&[0x5A; 4096], 0x10d8_56f6_5b35_4658),
        ];
        for (data, expected) in cases {
            assert_eq!(hash64(data), expected, "{} bytes", data.len());
        }
    }

    #[test]
    fn half_floats_are_exact() {
        let cases: [(u16, u32); 9] = [
            (0x0000, 0x0000_0000),
            (0x8000, 0x8000_0000),
            (0x0001, 0x3380_0000),
            (0x03FF, 0x387F_C000),
            (0x0400, 0x3880_0000),
            (0x3C00, 0x3F80_0000),
            (0xC000, 0xC000_0000),
            (0x7BFF, 0x477F_E000),
            (0xFC00, 0xFF80_0000),
        ];
        for (half, single) in cases {
            assert_eq!(f16_to_f32(half).to_bits(), single, "{half:04x}");
        }
        assert_eq!(f16_to_f32(0x7E01).to_bits(), 0x7FC0_2000);
        // Order and spacing of all positive finite values.
        for bits in 0..0x7BFFu16 {
            assert!(f16_to_f32(bits) < f16_to_f32(bits + 1), "{bits:04x}");
        }
    }

    #[test]
    fn blake3_is_the_published_function() {
        // Test vector of the BLAKE3 paper's repository, input length 0.
        assert_eq!(blake3_hex(b""), "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
    }
}
