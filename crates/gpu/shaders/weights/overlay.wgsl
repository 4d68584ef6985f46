// Sparse corrections: entries of row r are row_ptr[r] .. row_ptr[r + 1] - 1, each a column and an f32 to add.
@group(0) @binding(12) var<storage, read> row_ptr: array<u32>;
@group(0) @binding(13) var<storage, read> entries: array<vec2<u32>>;

fn entry_column(entry: u32) -> u32 { return entries[entry].x; }
fn entry_value(entry: u32) -> f32 { return bitcast<f32>(entries[entry].y); }
