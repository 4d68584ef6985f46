//! Where the time of a test goes, kernel by kernel.

use cortiq_model::KernelTime;
use serde::Serialize;

use crate::output::{print_text, table};

/// Times of the kernels in one test.
#[derive(Serialize)]
pub struct Profile {
    test: String,
    kernels: Vec<Kernel>,
}

#[derive(Serialize)]
struct Kernel {
    name: &'static str,
    calls_per_token: f64,
    us_per_token: f64,
    us_per_call: f64,
    share: f64,
}

impl Profile {
    /// Of a test that computed `tokens`.
    pub fn new(test: String, tokens: usize, times: &[KernelTime]) -> Self {
        let total: f64 = times.iter().map(|time| time.seconds).sum();
        let tokens = tokens.max(1) as f64;
        let kernel = |time: &KernelTime| Kernel {
            name: time.name,
            calls_per_token: time.calls as f64 / tokens,
            us_per_token: 1e6 * time.seconds / tokens,
            us_per_call: 1e6 * time.seconds / time.calls.max(1) as f64,
            share: time.seconds / total.max(1e-12),
        };
        Self { test, kernels: times.iter().map(kernel).collect() }
    }

    /// Prints a table.
    pub fn print(&self) -> anyhow::Result<()> {
        let head = [&self.test, "calls/token", "us/token", "us/call", "share"].map(str::to_owned).to_vec();
        let lines = self.kernels.iter().map(|kernel| {
            vec![
                kernel.name.to_owned(),
                format!("{:.1}", kernel.calls_per_token),
                format!("{:.1}", kernel.us_per_token),
                format!("{:.2}", kernel.us_per_call),
                format!("{:.1} %", 100.0 * kernel.share),
            ]
        });
        print_text(&table(&std::iter::once(head).chain(lines).collect::<Vec<_>>(), &[1, 2, 3, 4]))
    }
}
