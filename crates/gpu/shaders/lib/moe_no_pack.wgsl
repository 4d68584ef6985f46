// No int8 copy of the products.
fn pack_products(ids: Ids, at: u32, quads: u32) {}
