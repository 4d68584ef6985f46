// No rows of floats.
const FLOAT_GROUPS: u32 = 0u;
fn float_rows(ids: Ids, group: u32) {}
