//! The thread pool: the calling thread and `threads - 1` workers share numbered items.
//!
//! Workers spin for a short while between jobs (a decode step is hundreds of jobs a few microseconds apart), then
//! park. Publishing a job takes no lock and allocates nothing. A panic in an item becomes an error of the job.
//!
//! The caller works too, and waits only for workers that have entered the job: one that the system does not let run
//! (the machine is busy, a quota is used up) takes no items and holds up nobody.

#![allow(unsafe_code)]

mod output;

use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Longest time that a thread spins before it parks: more than the pauses between the jobs of a step, and little beside
/// a time slice of the system.
const SPIN: Duration = Duration::from_micros(40);

/// Rounds between two looks at the clock.
const ROUNDS: u32 = 16;

/// In [`Shared::gate`]: workers that are inside.
const INSIDE: u64 = (1 << 31) - 1;

/// In [`Shared::gate`]: workers may enter.
const OPEN: u64 = 1 << 31;

/// In [`Shared::gate`]: one job.
const EPOCH: u64 = 1 << 32;

/// Spins until `done`, or until it has taken [`SPIN`]; whether it is done.
fn spin_until(done: impl Fn() -> bool) -> bool {
    let mut end = None;
    loop {
        for _ in 0..ROUNDS {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        let now = Instant::now();
        if now >= *end.get_or_insert(now + SPIN) {
            return done();
        }
    }
}

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
    /// Number of the job, whether it can be entered, and how many workers are inside.
    gate: AtomicU64,
    /// The job of the current epoch. Written only by the publisher, while the gate is closed and nobody is inside.
    job: UnsafeCell<Option<Job>>,
    /// Who waits for the end of the job. Written as `job` is.
    publisher: UnsafeCell<Option<Thread>>,
    items: AtomicUsize,
    grain: AtomicUsize,
    next: AtomicUsize,
    /// The publisher may be parked.
    waiting: AtomicBool,
    panicked: AtomicBool,
    stop: AtomicBool,
}

// SAFETY: `job` and `publisher` are written only by `Pool::run`, which has `&mut Pool`, before it opens the gate; it
// returns only when the gate is closed and nobody is inside. Workers read them only after they have entered.
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
            gate: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            publisher: UnsafeCell::new(None),
            items: AtomicUsize::new(0),
            grain: AtomicUsize::new(1),
            next: AtomicUsize::new(0),
            waiting: AtomicBool::new(false),
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
            self.publish(&job);
        }
        shared.work(&mut self.scratch, &job);
        if !alone {
            shared.gate.fetch_and(!OPEN, Ordering::SeqCst);
            shared.wait_until_empty();
        }
        if shared.panicked.swap(false, Ordering::Relaxed) { Err(WorkerPanicked) } else { Ok(()) }
    }

    /// Lets workers enter `job`, which the caller keeps alive until [`Shared::wait_until_empty`] has returned.
    fn publish(&self, job: &(dyn Fn(&mut Scratch, Range<usize>) + Sync)) {
        let shared = &*self.shared;
        // SAFETY: only the lifetime is erased. Workers use the pointer only while they are inside, and the caller waits
        // for all of them before `job` goes out of scope.
        let erased: Job = unsafe { std::mem::transmute(job) };
        // SAFETY: the gate is closed and nobody is inside, so no worker reads the cells.
        unsafe {
            *shared.job.get() = Some(erased);
            *shared.publisher.get() = Some(std::thread::current());
        }
        let epoch = shared.gate.load(Ordering::Relaxed) / EPOCH + 1;
        shared.gate.store((epoch * EPOCH) | OPEN, Ordering::SeqCst);
        for worker in &self.workers {
            if worker.parked.swap(false, Ordering::SeqCst) {
                worker.thread.unpark();
            }
        }
    }
}

impl Shared {
    /// Waits for the workers that are inside the closed gate.
    fn wait_until_empty(&self) {
        let empty = || self.gate.load(Ordering::SeqCst) & INSIDE == 0;
        while !spin_until(empty) {
            self.waiting.store(true, Ordering::SeqCst);
            if !empty() {
                std::thread::park();
            }
            self.waiting.store(false, Ordering::SeqCst);
        }
    }

    /// Enters the job that is open, unless it is the one `seen` before; its number, and what to do and for whom.
    fn enter(&self, seen: u64) -> Option<(u64, Job, Thread)> {
        let gate = self.gate.load(Ordering::SeqCst);
        if gate & OPEN == 0 || gate / EPOCH == seen {
            return None;
        }
        // Fails when the job was closed or another worker came first: the next look decides.
        self.gate.compare_exchange(gate, gate + 1, Ordering::SeqCst, Ordering::SeqCst).ok()?;
        // SAFETY: this worker is inside, so the cells are not written until it leaves.
        let (job, publisher) = unsafe { (*self.job.get(), (*self.publisher.get()).clone()) };
        Some((gate / EPOCH, job?, publisher?))
    }

    /// Leaves a job.
    fn leave(&self, publisher: &Thread) {
        let before = self.gate.fetch_sub(1, Ordering::SeqCst);
        if before & INSIDE == 1 && self.waiting.load(Ordering::SeqCst) {
            publisher.unpark();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
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
    let mut seen = 0;
    loop {
        let news = || {
            let gate = shared.gate.load(Ordering::SeqCst);
            gate & OPEN != 0 && gate / EPOCH != seen || shared.stop.load(Ordering::SeqCst)
        };
        if !spin_until(news) {
            // The flag goes up before the last look, and the publisher looks at it after opening the gate: one of the
            // two sees the other.
            parked.store(true, Ordering::SeqCst);
            if !news() {
                std::thread::park();
            }
            parked.store(false, Ordering::SeqCst);
        }
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        if let Some((epoch, job, publisher)) = shared.enter(seen) {
            seen = epoch;
            // SAFETY: the publisher keeps the closure alive until this worker has left.
            shared.work(&mut scratch, unsafe { &*job });
            shared.leave(&publisher);
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
    fn pools_that_share_two_processors_do_not_wait_for_each_other() {
        // Eight pools of four threads each: most of them do not run at any time.
        let start = std::time::Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut pool = Pool::new(4).unwrap();
                    for _ in 0..300 {
                        let sum = AtomicUsize::new(0);
                        pool.run(16, 1, |_, range| {
                            sum.fetch_add(range.start, Ordering::Relaxed);
                        })
                        .unwrap();
                        assert_eq!(sum.load(Ordering::Relaxed), 15 * 16 / 2);
                    }
                });
            }
        });
        // 2400 jobs of next to nothing; waiting a time slice for each would take ten seconds or more.
        assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
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
