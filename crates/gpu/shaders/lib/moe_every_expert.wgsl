// The device matrix holds every expert, in order.
const NONE: u32 = 0xffffffffu;
fn expert_row(expert: u32) -> u32 { return expert * EXPERT_ROWS; }
