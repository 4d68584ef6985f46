// What the overlay of a row adds to its product with an activation.
fn overlay_row(row: u32, x_row: u32) -> f32 {
    var sum = 0.0;
    for (var e = row_ptr[row]; e < row_ptr[row + 1u]; e++) {
        let col = entry_column(e);
        sum += entry_value(e) * f32(x[x_row * X_STRIDE4 + col / 4u][col % 4u]);
    }
    return sum;
}
