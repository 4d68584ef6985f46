//! Products of one matrix on one thread: `cargo bench -p cortiq-cpu --features lab`.
//!
//! `memory`: 64 MiB of weights and one input, GB/s to hold against the first line, this machine's own reading.
//! `cache`: 128 KiB of weights and one input, what the instructions allow. `many`: 128 KiB and 64 inputs, products per
//! second.

use cortiq_cmf::Dtype;
use cortiq_cpu::lab::Products;
use cortiq_cpu::{Isa, read_bandwidth};
use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};

const DTYPES: [Dtype; 8] =
    [Dtype::Q8Row, Dtype::Q8_2f, Dtype::Q4Block, Dtype::Q4Tiled, Dtype::VbitRo, Dtype::Q1, Dtype::Q1s, Dtype::Q1t];

const COLS: usize = 1024;

fn main() {
    println!("reading memory: {:.2} GB/s", read_bandwidth(1, 3) / 1e9);
    divan::main();
}

/// About `bytes` of a dtype.
fn products(dtype: Dtype, bytes: usize, tokens: usize) -> Products {
    let small = Products::new(Isa::detect(), dtype, 64, COLS, tokens).unwrap_or_else(|error| panic!("{error}"));
    let rows = bytes / (small.bytes() / 64);
    Products::new(Isa::detect(), dtype, rows, COLS, tokens).unwrap_or_else(|error| panic!("{error}"))
}

#[divan::bench(args = DTYPES.map(Dtype::name), sample_count = 15, sample_size = 1)]
fn memory(bencher: Bencher<'_, '_>, name: &str) {
    let mut products = products(dtype(name), 64 << 20, 1);
    bencher.counter(BytesCount::new(products.bytes())).bench_local(|| products.run());
}

#[divan::bench(args = DTYPES.map(Dtype::name), sample_count = 100)]
fn cache(bencher: Bencher<'_, '_>, name: &str) {
    let mut products = products(dtype(name), 128 << 10, 1);
    bencher.counter(BytesCount::new(products.bytes())).bench_local(|| products.run());
}

#[divan::bench(args = DTYPES.map(Dtype::name), sample_count = 50)]
fn many(bencher: Bencher<'_, '_>, name: &str) {
    let dtype = dtype(name);
    let mut products = Products::new(Isa::detect(), dtype, 128, COLS, 64).unwrap_or_else(|error| panic!("{error}"));
    bencher.counter(ItemsCount::new(128 * COLS * 64)).bench_local(|| products.run());
}

fn dtype(name: &str) -> Dtype {
    Dtype::from_name(name).unwrap_or_else(|| panic!("{name} is a dtype"))
}
