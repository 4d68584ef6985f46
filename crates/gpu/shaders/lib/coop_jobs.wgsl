// Tiles of jobs of one expert: lines are places, and matrices without a live one are left out where one subgroup holds
// all lines.
@group(0) @binding(3) var<storage, read> order: array<u32>;
@group(0) @binding(4) var<storage, read> tiles: array<vec4<u32>>;

// The workgroup's tile, in memory of its own so that it is known to be the same for all threads.
var<workgroup> shared_tile: Tile;

fn prepare_tile(ids: Ids) {
    if ids.local == 0u {
        var found = Tile(0u, 0u, 0u, 0u);
        if ids.group.y < tiles[0].x {
            let tile = tiles[1u + ids.group.y];
            let base = expert_row(tile.x);
            found = Tile(tile.y, select(tile.z, 0u, base == NONE), ids.group.x * TILE_ROWS, base);
        }
        shared_tile = found;
    }
    workgroupBarrier();
}

fn tile_of(ids: Ids) -> Tile { return shared_tile; }
fn tile_live() -> bool { return shared_tile.lines > 0u; }
// Lines from the second matrix on, and from the third one on.
fn second_lines_live() -> bool { return (WAVES_X > 1u) | (shared_tile.lines > SIZE); }
fn third_lines_live() -> bool { return (WAVES_X > 1u) | (shared_tile.lines > 2u * SIZE); }

// Row of the activations of a line of the tile.
fn x_line(tile: Tile, line: u32) -> u32 { return x_row(tile.first_line + min(line, tile.lines - 1u)); }

// Row of the weights of a line of the tile.
fn w_line(tile: Tile, line: u32) -> u32 { return tile.base + line_row(tile.first_row + line); }

// Writes the matrix of sums that stands in this subgroup's part of `patch_sums`, four rows of a line at a time.
fn put_patch(tile: Tile, lane: u32, base: u32, first_line: u32, first_row: u32) {
    for (var i = lane; i < SIZE * SIZE / 4u; i += TEAM) {
        let line = first_line + 4u * i / SIZE;
        let row = first_row + 4u * i % SIZE;
        if line < tile.lines {
            let at = base + 4u * i;
            let sums = vec4(patch_sums[at], patch_sums[at + 1u], patch_sums[at + 2u], patch_sums[at + 3u]);
            let factors = vec4(raw_factor(w_line(tile, row)), raw_factor(w_line(tile, row + 1u)),
                raw_factor(w_line(tile, row + 2u)), raw_factor(w_line(tile, row + 3u)));
            put4(tile.first_line + line, tile.base, tile.first_row + row, sums * factors);
        }
    }
}
