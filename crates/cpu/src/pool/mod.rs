//! The thread pool: the calling thread and `threads - 1` workers share numbered items.
//!
//! Workers spin for a short while between jobs (a decode step is hundreds of jobs a few microseconds apart), then
//! park. Publishing a job takes no lock and allocates nothing. A panic in an item becomes an error of the job.

#![allow(unsafe_code)]

mod output;

use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};

/// Rounds that a worker spins before it parks: about 50 µs.
const SPIN_ROUNDS: u32 = 20_000;

/// Buffers that a worker keeps from job to job, so that steps do not allocate.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Decoded weight rows.
    pub(crate) rows: Vec<f32>,
    /// Attention scores.
    pub(crate) scores: Vec<f32>,
}

impl Scratch {
    /// `buffer` with at least `len` elements; grows only.
    pub(crate) fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
        if buffer.len() < len {
            buffer.resize(len, 0.0);
        }
        &mut buffer[..len]
    }
}

pub(crate) use output::{ColumnTile, Columns};

type Job = *const (dyn Fn(&mut Scratch, Range<usize>) + Sync);

struct Shared {
    /// Number of jobs published so far.
    epoch: AtomicUsize,
    /// The job of the current epoch. Written only by the publisher, while `running` is 0.
    job: UnsafeCell<Option<Job>>,
    items: AtomicUsize,
    grain: AtomicUsize,
    next: AtomicUsize,
    /// Workers that have not finished the current epoch.
    running: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
}

// SAFETY: `job` is written only by `Pool::run`, which has `&mut Pool` and returns only when `running` is 0, and is
// read by workers only after they saw (acquire) the epoch that the write happened before (release).
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Takes grains of items until none is left. `job` is the published closure, borrowed for this epoch.
    fn work(&self, scratch: &mut Scratch, job: &(dyn Fn(&mut Scratch, Range<usize>) + Sync)) {
        let (items, grain) = (self.items.load(Ordering::Relaxed), self.grain.load(Ordering::Relaxed));
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let start = self.next.fetch_add(grain, Ordering::Relaxed);
                if start >= items {
                    break;
                }
                job(scratch, start..items.min(start + grain));
            }
        }));
        if outcome.is_err() {
            self.panicked.store(true, Ordering::Relaxed);
        }
    }
}

struct Worker {
    thread: Thread,
    parked: Arc<AtomicBool>,
    handle: Option<JoinHandle<()>>,
}

/// A fixed set of threads that work on one job at a time.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    scratch: Scratch,
}

impl Pool {
    /// A pool of `threads` threads, the caller included.
    pub(crate) fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            items: AtomicUsize::new(0),
            grain: AtomicUsize::new(1),
            next: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let mut pool = Self { shared, workers: Vec::new(), scratch: Scratch::default() };
        for index in 1..threads.max(1) {
            let (shared, parked) = (Arc::clone(&pool.shared), Arc::new(AtomicBool::new(false)));
            let flag = Arc::clone(&parked);
            let handle = std::thread::Builder::new()
                .name(format!("cortiq-cpu-{index}"))
                .spawn(move || worker_loop(&shared, &flag))?;
            pool.workers.push(Worker { thread: handle.thread().clone(), parked, handle: Some(handle) });
        }
        Ok(pool)
    }

    /// Threads that share the work.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `job` on grains of `0..items` until all are done. Err when an item panicked.
    pub(crate) fn run<F>(&mut self, items: usize, grain: usize, job: F) -> Result<(), WorkerPanicked>
    where
        F: Fn(&mut Scratch, Range<usize>) + Sync,
    {
        let shared = &*self.shared;
        shared.items.store(items, Ordering::Relaxed);
        shared.grain.store(grain.max(1), Ordering::Relaxed);
        shared.next.store(0, Ordering::Relaxed);
        let alone = items <= grain || self.workers.is_empty();
        if !alone {
            let short: &(dyn Fn(&mut Scratch, Range<usize>) + Sync) = &job;
            // SAFETY: only the lifetime is erased. Workers use the pointer only before they lower `running`, and
            // this function waits for `running` to be 0 before `job` goes out of scope.
            let erased: Job = unsafe { std::mem::transmute(short) };
            // SAFETY: `running` is 0, so no worker reads the cell.
            unsafe { *shared.job.get() = Some(erased) };
            shared.running.store(self.workers.len(), Ordering::Relaxed);
            shared.epoch.fetch_add(1, Ordering::SeqCst);
            for worker in &self.workers {
                if worker.parked.load(Ordering::SeqCst) {
                    worker.thread.unpark();
                }
            }
        }
        shared.work(&mut self.scratch, &job);
        if !alone {
            let mut rounds = 0u32;
            while shared.running.load(Ordering::Acquire) != 0 {
                rounds += 1;
                if rounds < SPIN_ROUNDS { std::hint::spin_loop() } else { std::thread::yield_now() }
            }
        }
        if shared.panicked.swap(false, Ordering::Relaxed) { Err(WorkerPanicked) } else { Ok(()) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for worker in &mut self.workers {
            worker.thread.unpark();
            if let Some(handle) = worker.handle.take() {
                // A worker catches the panics of its items, so joining cannot report one.
                let _ = handle.join();
            }
        }
    }
}

fn worker_loop(shared: &Shared, parked: &AtomicBool) {
    let mut scratch = Scratch::default();
    let mut seen = 0usize;
    loop {
        seen = wait_for_epoch(shared, parked, seen);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the epoch was seen (acquire) after the publisher wrote the cell, and it is not written again
        // before this worker lowers `running`.
        let job = unsafe { *shared.job.get() };
        if let Some(job) = job {
            // SAFETY: the publisher keeps the closure alive until `running` is 0, which this worker lowers below.
            shared.work(&mut scratch, unsafe { &*job });
        }
        shared.running.fetch_sub(1, Ordering::Release);
    }
}

/// Spins, then parks, until the epoch differs from `seen`; returns the new one.
fn wait_for_epoch(shared: &Shared, parked: &AtomicBool, seen: usize) -> usize {
    let mut rounds = 0u32;
    loop {
        let epoch = shared.epoch.load(Ordering::SeqCst);
        if epoch != seen {
            parked.store(false, Ordering::Relaxed);
            return epoch;
        }
        rounds += 1;
        if rounds < SPIN_ROUNDS {
            std::hint::spin_loop();
        } else if !parked.swap(true, Ordering::SeqCst) {
            // Look at the epoch once more: a publisher that missed the flag has already changed it.
        } else {
            std::thread::park();
        }
    }
}

/// An item of a job panicked; the other items were still run.
#[derive(Debug, thiserror::Error)]
#[error("a worker thread panicked")]
pub(crate) struct WorkerPanicked;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_runs_exactly_once_on_any_number_of_threads() {
        for threads in [1, 2, 3, 5] {
            let mut pool = Pool::new(threads).unwrap();
            assert_eq!(pool.threads(), threads);
            for items in [0usize, 1, 7, 1000] {
                let counts: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
                pool.run(items, 3, |_, range| {
                    for i in range {
                        counts[i].fetch_add(1, Ordering::Relaxed);
                    }
                })
                .unwrap();
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{threads} threads, {items} items");
            }
        }
    }

    #[test]
    fn a_panic_is_an_error_and_the_pool_lives_on() {
        let mut pool = Pool::new(2).unwrap();
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let failed = pool.run(100, 1, |_, range| assert!(!range.contains(&41)));
        std::panic::set_hook(hook);
        assert!(failed.is_err());
        assert!(pool.run(100, 1, |_, _| {}).is_ok());
    }

    #[test]
    fn parked_workers_wake_up() {
        let mut pool = Pool::new(2).unwrap();
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            let sum = AtomicUsize::new(0);
            pool.run(64, 1, |_, range| {
                sum.fetch_add(range.start, Ordering::Relaxed);
            })
            .unwrap();
            assert_eq!(sum.load(Ordering::Relaxed), 63 * 64 / 2);
        }
    }
}
