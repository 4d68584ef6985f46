//! This machine's own read bandwidth: the yardstick of every decode figure.

use std::time::Instant;

/// Bytes that all threads read per pass together: far beyond any cache.
pub const BANDWIDTH_BYTES: usize = 512 << 20;

/// Best of `passes` over private buffers, [`BANDWIDTH_BYTES`] together, in bytes per second, all threads at once.
pub fn read_bandwidth(threads: usize, passes: usize) -> f64 {
    let threads = threads.max(1);
    let words = BANDWIDTH_BYTES / threads / 8;
    let buffers: Vec<Vec<u64>> = (0..threads).map(|t| vec![t as u64 + 1; words]).collect();
    let mut best = f64::MAX;
    for _ in 0..passes.max(1) {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for buffer in &buffers {
                scope.spawn(move || std::hint::black_box(sum(buffer)));
            }
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    (threads * words * 8) as f64 / best
}

/// Independent sums, so that only memory limits it.
fn sum(buffer: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    for chunk in buffer.chunks_exact(32) {
        for (s, x) in sums.iter_mut().zip(chunk) {
            *s = s.wrapping_add(*x);
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}
