// The device matrix holds some of the experts: their first rows, and NONE for the others.
const NONE: u32 = 0xffffffffu;
@group(0) @binding(6) var<storage, read> expert_rows: array<u32>;
fn expert_row(expert: u32) -> u32 { return expert_rows[expert]; }
