//! Progress of long work on the standard error: a bar on a terminal, a line now and then otherwise.

use std::cell::{Cell, RefCell};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cortiq_convert::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::note;

/// Lines are printed when so many more percent are done.
const LINE_STEP: u64 = 10;

/// What the numbers of a meter count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Windows of a text.
    Windows,
}

/// Shows how much of a known amount is done.
pub struct Meter {
    total: u64,
    /// None where lines are printed or nothing is.
    bar: Option<ProgressBar>,
    lines: bool,
    printed: Cell<u64>,
}

impl Meter {
    /// A meter for `total` units. Without a terminal a `quiet` one prints nothing.
    pub fn new(total: u64, unit: Unit, quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = terminal.then(|| {
            let template = match unit {
                Unit::Bytes => "{bar:30} {percent:>3}% {bytes}/{total_bytes} {eta} {wide_msg}",
                Unit::Windows => "{bar:30} {percent:>3}% {eta} {wide_msg}",
            };
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()).with_style(style)
        });
        Self { total, lines: bar.is_none() && !quiet, bar, printed: Cell::new(0) }
    }

    /// `done` units are done; `what` was the last of them.
    pub fn set(&self, done: u64, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.set_message(what.to_owned());
        }
        let percent = percent(done, self.total);
        if self.lines && percent >= self.printed.get() + LINE_STEP {
            self.printed.set(percent / LINE_STEP * LINE_STEP);
            note(format!("{percent:>3}% {what}").trim_end());
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn percent(done: u64, total: u64) -> u64 {
    if total == 0 { 100 } else { (u128::from(done) * 100 / u128::from(total)) as u64 }
}

/// Progress of a download, one meter per file.
pub struct DownloadProgress {
    quiet: bool,
    meter: RefCell<Option<(String, Meter)>>,
}

impl DownloadProgress {
    /// A progress display that prints nothing when `quiet` and not on a terminal.
    pub fn new(quiet: bool) -> Self {
        Self { quiet, meter: RefCell::new(None) }
    }
}

impl Progress for DownloadProgress {
    fn download(&self, file: &str, done_bytes: u64, total_bytes: u64) {
        let mut meter = self.meter.borrow_mut();
        if meter.as_ref().is_none_or(|(name, _)| name != file) {
            if let Some((_, finished)) = meter.take() {
                finished.finish();
            }
            *meter = Some((file.to_owned(), Meter::new(total_bytes, Unit::Bytes, self.quiet)));
        }
        if let Some((_, meter)) = &*meter {
            meter.set(done_bytes, file);
            if done_bytes >= total_bytes {
                meter.finish();
            }
        }
    }

    fn start(&self, _total_bytes: u64, _tensors: usize) {}

    fn tensor(&self, _name: &str, _done_bytes: u64) {}

    fn finish(&self) {}
}

/// Progress of a conversion.
pub struct ConvertProgress {
    quiet: bool,
    /// Set when the output is being written.
    writing: Arc<AtomicBool>,
    meter: RefCell<Option<Meter>>,
}

impl ConvertProgress {
    /// A progress display; `writing` is set as soon as there is an output that is not complete.
    pub fn new(quiet: bool, writing: Arc<AtomicBool>) -> Self {
        Self { quiet, writing, meter: RefCell::new(None) }
    }
}

impl Progress for ConvertProgress {
    fn start(&self, total_bytes: u64, _tensors: usize) {
        self.writing.store(true, Ordering::SeqCst);
        *self.meter.borrow_mut() = Some(Meter::new(total_bytes, Unit::Bytes, self.quiet));
    }

    fn tensor(&self, name: &str, done_bytes: u64) {
        if let Some(meter) = &*self.meter.borrow() {
            meter.set(done_bytes, name);
        }
    }

    fn finish(&self) {
        self.writing.store(false, Ordering::SeqCst);
        if let Some(meter) = &*self.meter.borrow() {
            meter.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_do_not_overflow() {
        for (done, total, want) in [(0, 0, 100), (1, 3, 33), (3, 3, 100), (u64::MAX, u64::MAX, 100)] {
            assert_eq!(percent(done, total), want);
        }
    }
}
