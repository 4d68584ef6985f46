// A lane's share of the product of rows of signs with the activation in workgroup memory, four neighbouring groups at a
// time: with so few bytes per weight instructions count, and these are one load of 16 bytes per word of activations.
// In the place of `lib/dot_x.wgsl`; needs BLOCKS to be a multiple of 4.
const QUARTERS: u32 = BLOCKS / 4u;
const STEPS: u32 = (QUARTERS + TEAM - 1u) / TEAM;
const WHOLE: bool = QUARTERS % TEAM == 0u;

// Signs and scales of four groups.
struct Four { bits: vec4<u32>, scales: vec2<u32> }

fn load_four(row: u32, quarter: u32) -> Four {
    let at = row * QUARTERS + quarter;
    return Four(codes[at], scales[at]);
}

// Word `k` of the activations of four groups times the bits that belong to it.
fn masked_dots(bits: vec4<u32>, k: u32, words: vec4<u32>) -> vec4<i32> {
    let mask = (bits >> vec4(k)) & vec4(0x01010101u);
    return vec4(dot4I8Packed(mask.x, words.x), dot4I8Packed(mask.y, words.y), dot4I8Packed(mask.z, words.z),
        dot4I8Packed(mask.w, words.w));
}

// Σ over the groups of scale * (2 Σ_{bit set} x - Σ x).
fn finish_four(w: Four, sums: vec4<i32>, quarter: u32) -> f32 {
    let factors = vec4(unpack2x16float(w.scales.x), unpack2x16float(w.scales.y));
    return dot(factors, 2.0 * vec4<f32>(sums) * x_scales4[quarter] - x_sums4[quarter]);
}

fn dot_x(row: u32, lane: u32) -> f32 {
    var sum = 0.0;
    for (var step = 0u; step < STEPS; step++) {
        let quarter = step * TEAM + lane;
        if WHOLE || quarter < QUARTERS {
            let w = load_four(row, quarter);
            var sums = masked_dots(w.bits, 0u, x_four(0u, quarter));
            sums += masked_dots(w.bits, 1u, x_four(1u, quarter));
            sums += masked_dots(w.bits, 2u, x_four(2u, quarter));
            sums += masked_dots(w.bits, 3u, x_four(3u, quarter));
            sums += masked_dots(w.bits, 4u, x_four(4u, quarter));
            sums += masked_dots(w.bits, 5u, x_four(5u, quarter));
            sums += masked_dots(w.bits, 6u, x_four(6u, quarter));
            sums += masked_dots(w.bits, 7u, x_four(7u, quarter));
            sum += finish_four(w, sums, quarter);
        }
    }
    return sum;
}

struct TwoSums { a: vec4<i32>, b: vec4<i32> }

fn add_word(sums: TwoSums, wa: Four, wb: Four, k: u32, quarter: u32) -> TwoSums {
    let words = x_four(k, quarter);
    return TwoSums(sums.a + masked_dots(wa.bits, k, words), sums.b + masked_dots(wb.bits, k, words));
}

// The same for two rows, which share the activations.
fn dot_x2(a: u32, b: u32, lane: u32) -> vec2<f32> {
    var result = vec2(0.0);
    for (var step = 0u; step < STEPS; step++) {
        let quarter = step * TEAM + lane;
        if WHOLE || quarter < QUARTERS {
            let wa = load_four(a, quarter);
            let wb = load_four(b, quarter);
            var sums = TwoSums(vec4(0), vec4(0));
            sums = add_word(sums, wa, wb, 0u, quarter);
            sums = add_word(sums, wa, wb, 1u, quarter);
            sums = add_word(sums, wa, wb, 2u, quarter);
            sums = add_word(sums, wa, wb, 3u, quarter);
            sums = add_word(sums, wa, wb, 4u, quarter);
            sums = add_word(sums, wa, wb, 5u, quarter);
            sums = add_word(sums, wa, wb, 6u, quarter);
            sums = add_word(sums, wa, wb, 7u, quarter);
            result += vec2(finish_four(wa, sums.a, quarter), finish_four(wb, sums.b, quarter));
        }
    }
    return result;
}
