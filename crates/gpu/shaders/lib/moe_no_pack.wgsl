// No int8 copy of the products.
fn pack_products(group: u32, first: u32) {}
