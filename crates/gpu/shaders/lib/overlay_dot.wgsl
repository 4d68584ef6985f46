// A lane's share of what the overlay of a row adds to its product with an activation.
fn overlay_dot(ids: Ids, row: u32, token: u32) -> f32 {
    var sum = 0.0;
    for (var e = row_ptr[row] + team_lane(ids); e < row_ptr[row + 1u]; e += TEAM) {
        let col = entry_column(e);
        sum += entry_value(e) * x[token * X_STRIDE4 + col / 4u][col % 4u];
    }
    return sum;
}
