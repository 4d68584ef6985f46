// Logits as integers in the order in which tokens are chosen: larger ones first, both zeros equal. NaN and +inf, which
// are no logits, come before all others, so that the host sees them. NOBODY, where there is no token, comes last; what
// lists are padded with is 0.
const NOBODY: u32 = 1u;

fn key_of(bits: u32) -> u32 {
    let size = bits & 0x7fffffffu;
    if size > 0x7f800000u || bits == 0x7f800000u { return 0xffffffffu; }
    if size == 0u { return 0x80000000u; }
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}
