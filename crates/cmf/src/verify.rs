//! Comparison of all hashes and digests, docs/cmf-format.md §8 and §13.4.

use crate::envelope::Section;
use crate::part::Part;
use crate::{CmfFile, blake3_hex, hash64};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Below this many bytes one thread does all the work.
const PARALLEL_FROM: u64 = 4 << 20;

/// Which of the two checks found something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// The format's own hash.
    Hash64,
    /// The cryptographic digest.
    Blake3,
}

/// One thing whose bytes are not what the file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Shard, counted from 0.
    pub part: usize,
    /// Section, or name of the tensor.
    pub what: String,
    /// Which check failed.
    pub check: Check,
    /// Value in the file.
    pub expected: String,
    /// Value of the bytes.
    pub found: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let check = match self.check {
            Check::Hash64 => "hash64",
            Check::Blake3 => "blake3",
        };
        let Self { part, what, expected, found, .. } = self;
        if *part > 0 {
            write!(f, "shard {}: ", part + 1)?;
        }
        write!(f, "{what}: {check} is {found:?}, the file says {expected:?}")
    }
}

/// Result of [`CmfFile::verify`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VerifyReport {
    /// Nothing is wrong.
    pub ok: bool,
    /// What is wrong, in the order of the file.
    pub problems: Vec<Problem>,
    /// hash64 values compared.
    pub hashes_checked: usize,
    /// Sections for which the file records no hash64.
    pub hashes_absent: usize,
    /// Digests compared.
    pub digests_checked: usize,
    /// Bytes read.
    pub bytes: u64,
}

/// One run of bytes with the values that the file gives for it.
struct Job<'a> {
    part: usize,
    what: &'a str,
    bytes: &'a [u8],
    /// `Err` is text that is no hash.
    hash: Option<Result<u64, &'a str>>,
    digest: Option<&'a str>,
}

impl CmfFile {
    /// Reads everything and compares hashes and digests, on several threads for large
    /// files. hash64 finds accidents; only digests find deliberate changes, and only
    /// if [`CmfFile::header_digest`] is compared with a value from a trusted place.
    #[must_use]
    pub fn verify(&self) -> VerifyReport {
        let jobs = self.jobs();
        let mut report = VerifyReport::default();
        for job in &jobs {
            report.hashes_checked += usize::from(job.hash.is_some());
            report.hashes_absent += usize::from(job.hash.is_none());
            report.digests_checked += usize::from(job.digest.is_some());
            report.bytes += job.bytes.len() as u64;
        }
        report.problems = run(&jobs, report.bytes);
        report.ok = report.problems.is_empty();
        report
    }

    fn jobs(&self) -> Vec<Job<'_>> {
        let mut jobs = Vec::new();
        for (number, part) in self.parts().enumerate() {
            section_jobs(number, part, &mut jobs);
        }
        let mut positions = vec![0usize; self.part_count()];
        let parts: Vec<&Part> = self.parts().collect();
        for (index, tensor) in self.tensors().iter().enumerate() {
            let (Some(part), Some(position)) = (parts.get(tensor.part), positions.get_mut(tensor.part)) else {
                continue;
            };
            let digests = part.header.digests.as_ref();
            jobs.push(Job {
                part: tensor.part,
                what: &tensor.name,
                bytes: self.data(index).unwrap_or_default(),
                hash: Some(Ok(tensor.hash)),
                digest: digests.and_then(|d| d.tensors.get(*position)).map(String::as_str),
            });
            *position += 1;
        }
        jobs
    }
}

fn section_jobs<'a>(number: usize, part: &'a Part, jobs: &mut Vec<Job<'a>>) {
    let envelope = &part.envelope;
    let hashes = part.header.section_hashes.as_ref();
    let digests = part.header.digests.as_ref();
    let recorded = |hash: u64| (hash != 0).then_some(Ok(hash));
    let listed = |text: Option<&'a String>| text.map(|t| u64::from_str_radix(t, 16).map_err(|_| t.as_str()));
    let rows = [
        (Section::Header, recorded(envelope.header_hash), None),
        (Section::Directory, recorded(envelope.dir_hash), digests.map(|d| &d.directory)),
        (Section::Masks, listed(hashes.and_then(|h| h.masks.as_ref())), digests.and_then(|d| d.masks.as_ref())),
        (Section::Vocab, listed(hashes.and_then(|h| h.vocab.as_ref())), digests.and_then(|d| d.vocab.as_ref())),
        (Section::Index, listed(hashes.and_then(|h| h.index.as_ref())), digests.and_then(|d| d.index.as_ref())),
    ];
    for (section, hash, digest) in rows {
        let bytes = part.section(section);
        // A value for a section that is not there is compared with no bytes.
        if bytes.is_none() && hash.is_none() && digest.is_none() {
            continue;
        }
        jobs.push(Job {
            part: number,
            what: section.name(),
            bytes: bytes.unwrap_or_default(),
            hash,
            digest: digest.map(String::as_str),
        });
    }
}

fn run(jobs: &[Job<'_>], bytes: u64) -> Vec<Problem> {
    let threads = if bytes < PARALLEL_FROM { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) };
    let next = AtomicUsize::new(0);
    let work = || {
        let mut found = Vec::new();
        while let Some((at, job)) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            jobs.get(at).map(|job| (at, job))
        } {
            found.extend(job.problems().map(|problem| (at, problem)));
        }
        found
    };
    let mut problems = std::thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut problems = work();
        for helper in helpers {
            match helper.join() {
                Ok(more) => problems.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        problems
    });
    problems.sort_by_key(|(at, _)| *at);
    problems.into_iter().map(|(_, problem)| problem).collect()
}

impl Job<'_> {
    fn problems(&self) -> impl Iterator<Item = Problem> {
        let problem = |check, expected: String, found: String| Problem {
            part: self.part,
            what: self.what.to_owned(),
            check,
            expected,
            found,
        };
        let hash = match self.hash {
            None => None,
            Some(expected) => {
                let found = hash64(self.bytes);
                let text = || match expected {
                    Ok(hash) => format!("{hash:016x}"),
                    Err(text) => text.to_owned(),
                };
                (expected != Ok(found)).then(|| problem(Check::Hash64, text(), format!("{found:016x}")))
            }
        };
        let digest = self.digest.and_then(|expected| {
            let found = blake3_hex(self.bytes);
            (found != expected).then(|| problem(Check::Blake3, expected.to_owned(), found))
        });
        hash.into_iter().chain(digest)
    }
}
