//! Sparse corrections by row: `row_ptr[rows + 1]`, then `(column, f32 value)` pairs.

use super::Planes;

/// The two planes. Columns come from checked views, so that shaders need not check them.
pub(super) fn pack(rows: impl Iterator<Item = Vec<(u32, f32)>>) -> Planes {
    let (mut row_ptr, mut entries) = (vec![0u32], Vec::new());
    for row in rows {
        entries.extend(row.into_iter().flat_map(|(col, value)| [col, value.to_bits()]));
        row_ptr.push((entries.len() / 2) as u32);
    }
    // A buffer must not be empty.
    if entries.is_empty() {
        entries = vec![0; 2];
    }
    vec![row_ptr, entries]
}
