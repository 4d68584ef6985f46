// A lane's share of the product of a row with the activation in workgroup memory.
const STEPS: u32 = (BLOCKS + TEAM - 1u) / TEAM;
// Every lane has a block in every step: no branch keeps the compiler from having several loads on their way.
const WHOLE: bool = BLOCKS % TEAM == 0u;

fn dot_x(row: u32, lane: u32) -> f32 {
    var sum = 0.0;
    for (var step = 0u; step < STEPS; step++) {
        let block = step * TEAM + lane;
        if WHOLE || block < BLOCKS {
            sum += dot_group(load_block(row, block), x_group(block));
        }
    }
    return sum;
}

// The same for two rows, whose loads are on their way together.
fn dot_x2(a: u32, b: u32, lane: u32) -> vec2<f32> {
    var sums = vec2(0.0);
    for (var step = 0u; step < STEPS; step++) {
        let block = step * TEAM + lane;
        if WHOLE || block < BLOCKS {
            let wa = load_block(a, block);
            let wb = load_block(b, block);
            let group = x_group(block);
            sums += vec2(dot_group(wa, group), dot_group(wb, group));
        }
    }
    return sums;
}
