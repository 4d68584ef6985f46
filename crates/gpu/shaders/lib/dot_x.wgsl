// A lane's share of the products of rows with the activation in workgroup memory, TOGETHER steps of blocks at a time:
// 1, 2 or 4. Written out, because loops stay loops, and every turn with a load waits for it.
const STEPS: u32 = (BLOCKS + TEAM - 1u) / TEAM;
// Every lane has a block in every step: no branch keeps the compiler from having several loads on their way.
const WHOLE: bool = BLOCKS % TEAM == 0u;
// So that a step is never left over.
const EVEN: bool = WHOLE && STEPS % TOGETHER == 0u;

// Blocks of activations; nothing of those beyond the end counts.
fn place_of(block: u32) -> u32 { return select(min(block, BLOCKS - 1u), block, EVEN); }
fn scale_of(block: u32) -> vec2<f32> { return select(vec2(0.0), x_scales[place_of(block)], EVEN || block < BLOCKS); }

fn dot_loaded(w: Block, block: u32) -> f32 {
    let at = place_of(block);
    return dot_block(w, x_low(at), x_high(at), scale_of(block));
}

fn dot_x(row: u32, lane: u32) -> f32 {
    var sum = 0.0;
    if TOGETHER == 1u {
        for (var step = 0u; step < STEPS; step++) {
            let block = step * TEAM + lane;
            if WHOLE || block < BLOCKS {
                sum += dot_block(load_block(row, block), x_low(block), x_high(block), x_scales[block]);
            }
        }
        return sum;
    }
    for (var step = 0u; step < STEPS; step += TOGETHER) {
        let a = step * TEAM + lane;
        let b = a + TEAM;
        let wa = load_block(row, place_of(a));
        let wb = load_block(row, place_of(b));
        if TOGETHER == 4u {
            let c = b + TEAM;
            let d = c + TEAM;
            let wc = load_block(row, place_of(c));
            let wd = load_block(row, place_of(d));
            sum += dot_loaded(wa, a) + dot_loaded(wb, b) + (dot_loaded(wc, c) + dot_loaded(wd, d));
        } else {
            sum += dot_loaded(wa, a) + dot_loaded(wb, b);
        }
    }
    return sum;
}

fn dot_two(wa: Block, wb: Block, block: u32) -> vec2<f32> {
    let at = place_of(block);
    let low = x_low(at);
    let high = x_high(at);
    let scale = scale_of(block);
    return vec2(dot_block(wa, low, high, scale), dot_block(wb, low, high, scale));
}

// The same for two rows, whose loads are on their way together.
fn dot_x2(row0: u32, row1: u32, lane: u32) -> vec2<f32> {
    var sums = vec2(0.0);
    if TOGETHER == 1u {
        for (var step = 0u; step < STEPS; step++) {
            let block = step * TEAM + lane;
            if WHOLE || block < BLOCKS {
                let w0 = load_block(row0, block);
                let w1 = load_block(row1, block);
                let low = x_low(block);
                let high = x_high(block);
                let scale = x_scales[block];
                sums += vec2(dot_block(w0, low, high, scale), dot_block(w1, low, high, scale));
            }
        }
        return sums;
    }
    for (var step = 0u; step < STEPS; step += TOGETHER) {
        let a = step * TEAM + lane;
        let b = a + TEAM;
        let wa0 = load_block(row0, place_of(a));
        let wa1 = load_block(row1, place_of(a));
        let wb0 = load_block(row0, place_of(b));
        let wb1 = load_block(row1, place_of(b));
        if TOGETHER == 4u {
            let c = b + TEAM;
            let d = c + TEAM;
            let wc0 = load_block(row0, place_of(c));
            let wc1 = load_block(row1, place_of(c));
            let wd0 = load_block(row0, place_of(d));
            let wd1 = load_block(row1, place_of(d));
            sums += dot_two(wa0, wa1, a) + dot_two(wb0, wb1, b) + (dot_two(wc0, wc1, c) + dot_two(wd0, wd1, d));
        } else {
            sums += dot_two(wa0, wa1, a) + dot_two(wb0, wb1, b);
        }
    }
    return sums;
}
