// What the overlay of a row adds to columns 4 c4 .. 4 c4 + 3.
fn overlay4(row: u32, c4: u32) -> vec4<f32> {
    var sum = vec4(0.0);
    for (var e = row_ptr[row]; e < row_ptr[row + 1u]; e++) {
        let col = entry_column(e);
        if col / 4u == c4 { sum += select(vec4(0.0), vec4(entry_value(e)), vec4(col % 4u) == vec4(0u, 1u, 2u, 3u)); }
    }
    return sum;
}
