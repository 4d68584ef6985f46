// Tiles of the tokens of a step: lines are tokens, all of which are multiplied.
fn prepare_tile(ids: Ids) {}
fn tile_live() -> bool { return true; }
fn second_lines_live() -> bool { return true; }
fn third_lines_live() -> bool { return true; }

fn tile_of(ids: Ids) -> Tile {
    let first = ids.group.x * TILE_TOKENS;
    return Tile(first, live_tokens() - first, group_index(ids.group, ids.groups) * TILE_ROWS, 0u);
}

// Row of the activations of a line of the tile.
fn x_line(tile: Tile, line: u32) -> u32 { return tile.first_line + min(line, tile.lines - 1u); }

// Row of the weights of a line of the tile.
fn w_line(tile: Tile, line: u32) -> u32 { return min(tile.first_row + line, ROWS - 1u); }

// Writes the matrix of sums that stands in this subgroup's part of `patch_sums`.
fn put_patch(tile: Tile, lane: u32, base: u32, first_line: u32, first_row: u32) {
    for (var i = lane; i < SIZE * SIZE; i += TEAM) {
        let line = first_line + i / SIZE;
        let row = tile.first_row + first_row + i % SIZE;
        if line < tile.lines && row < ROWS {
            put(tile.first_line + line, row, patch_sums[base + i] * raw_factor(row));
        }
    }
}
