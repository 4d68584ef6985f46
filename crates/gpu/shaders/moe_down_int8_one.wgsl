// Σ factor * down(product) over the experts of one token, int8 products. A team makes two neighbouring rows (y).
// Reads each job's row once: JOBS rows per output row. An item is a block of one of a row's JOBS products; a lane has
// SPAN items of both rows on their way at a time, mostly all that it ever loads: written out, because compilers rarely
// unroll loops, and every turn of one waits for its loads.

var<workgroup> job_rows: array<u32, JOBS>;
var<workgroup> job_factors: array<f32, JOBS>;

// A block of two rows.
struct Item { a: Block, b: Block, factors: vec2<f32> }

// Beyond the end the last item, whose activation counts nothing.
fn load_item(rows: vec2<u32>, item: u32) -> Item {
    let at = min(item, X_GROUPS - 1u);
    let here = job_rows[at / BLOCKS] + rows;
    return Item(load_block(here.x, at % BLOCKS), load_block(here.y, at % BLOCKS),
        vec2(row_factor(here.x), row_factor(here.y)));
}

fn item_sum(w: Item, item: u32) -> vec2<f32> {
    let x = x_group(item);
    let factor = job_factors[min(item, X_GROUPS - 1u) / BLOCKS];
    return factor * w.factors * vec2(dot_group(w.a, x), dot_group(w.b, x));
}

// Where the rows of the token's experts start and what they count; an expert of another pool counts nothing.
fn prepare_jobs(local: u32) {
    if local < JOBS {
        let base = expert_row(job_expert(local));
        job_rows[local] = select(base, 0u, base == NONE);
        job_factors[local] = select(factors[job_place(local)], 0.0, base == NONE);
    }
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let row = 2u * (group_index(ids.group, ids.groups) * (WORKGROUP / TEAM) + team_index(ids));
    let rows = min(vec2(row, row + 1u), vec2(ROWS - 1u));
    let lane = team_lane(ids);
    let raw = load_x(ids);
    var before = vec2(0.0);
    if ADD { before = vec2(out[rows.x], out[rows.y]); }
    prepare_jobs(ids.local);
    prepare_x(ids, raw);
    var sum = vec2(0.0);
    for (var turn = 0u; turn < TURNS; turn++) {
        let item = turn * SPAN * TEAM + lane;
        let a = load_item(rows, item);
        var b: Item;
        var c: Item;
        var d: Item;
        var e: Item;
        var f: Item;
        if SPAN > 1u { b = load_item(rows, item + TEAM); }
        if SPAN > 2u { c = load_item(rows, item + 2u * TEAM); }
        if SPAN > 3u { d = load_item(rows, item + 3u * TEAM); }
        if SPAN > 4u { e = load_item(rows, item + 4u * TEAM); }
        if SPAN > 5u { f = load_item(rows, item + 5u * TEAM); }
        sum += item_sum(a, item);
        if SPAN > 1u { sum += item_sum(b, item + TEAM); }
        if SPAN > 2u { sum += item_sum(c, item + 2u * TEAM); }
        if SPAN > 3u { sum += item_sum(d, item + 3u * TEAM); }
        if SPAN > 4u { sum += item_sum(e, item + 4u * TEAM); }
        if SPAN > 5u { sum += item_sum(f, item + 5u * TEAM); }
    }
    if OVERLAY {
        for (var job = 0u; job < JOBS; job++) {
            let here = job_rows[job] + rows;
            sum += job_factors[job] * vec2(overlay_dot(ids, here.x, job), overlay_dot(ids, here.y, job));
        }
    }
    let x_total = team_sum(ids, sum.x);
    let y_total = team_sum(ids, sum.y);
    if lane == 0u && row < ROWS { out[row] = before.x + x_total; }
    if lane == 1u && row + 1u < ROWS { out[row + 1u] = before.y + y_total; }
}
