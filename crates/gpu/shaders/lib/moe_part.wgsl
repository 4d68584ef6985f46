// Which stacked matrix a row belongs to.
fn part_of(row: u32) -> u32 { return row / PART_ROWS; }
