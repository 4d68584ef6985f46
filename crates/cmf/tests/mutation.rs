//! Damaged files: whatever happens to the bytes, opening says yes or no without a panic,
//! and a yes keeps all its promises.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a failed expectation fails the test

mod common;
use common::*;
use cortiq_cmf::*;
use std::sync::atomic::{AtomicU64, Ordering};

const CASES: u64 = 300_000;

/// SplitMix64 (public domain, Sebastiano Vigna).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Numbers at which arithmetic goes wrong.
    fn extreme(&mut self, file_len: usize) -> u64 {
        let len = file_len as u64;
        let base = self.pick(&[
            0,
            1,
            2,
            7,
            31,
            56,
            63,
            64,
            4095,
            4096,
            len,
            1 << 15,
            1 << 16,
            1 << 31,
            1 << 32,
            1 << 58,
            1 << 62,
            1 << 63,
            u64::MAX,
            u64::MAX / 56,
            u64::MAX - 63,
            u64::MAX - len,
            u64::from(u32::MAX),
            u64::from(u16::MAX),
        ]);
        match self.below(4) {
            0 => base.wrapping_add(self.next() % 9).wrapping_sub(4),
            1 => self.next() >> self.below(64),
            _ => base,
        }
    }
}

/// Damages a file in one to three ways.
fn mutate(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(3) {
        match random.below(10) {
            0 | 1 => flip(&mut bytes, random),
            2 => bytes.truncate(random.below(bytes.len() + 1)),
            3 => splice(&mut bytes, random),
            4 => envelope_field(&mut bytes, random),
            5 | 6 => directory_field(&mut bytes, random),
            7 => header_number(&mut bytes, random),
            8 => section_word(&mut bytes, random),
            _ => payload_bytes(&mut bytes, random),
        }
    }
    bytes
}

/// A place inside a section (or the envelope), not in the fill between them.
fn place(bytes: &[u8], random: &mut Random) -> Option<usize> {
    let at = match random.below(7) {
        6 => random.below(128),
        i => {
            let (offset, len) = checked_span(bytes, Section::ALL[i])?;
            offset + random.below(len)
        }
    };
    (at < bytes.len()).then_some(at)
}

fn checked_span(bytes: &[u8], section: Section) -> Option<(usize, usize)> {
    let (offset, len) = (bytes.len() >= 128).then(|| span(bytes, section))?;
    let end = offset.checked_add(len)?;
    (len > 0 && end <= bytes.len()).then_some((offset, len))
}

fn flip(bytes: &mut [u8], random: &mut Random) {
    if let Some(at) = place(bytes, random) {
        bytes[at] = match random.below(3) {
            0 => random.next() as u8,
            _ => bytes[at] ^ 1 << random.below(8),
        };
    }
}

fn splice(bytes: &mut Vec<u8>, random: &mut Random) {
    let (Some(from), Some(to)) = (place(bytes, random), place(bytes, random)) else {
        return;
    };
    let len = random.below(64).min(bytes.len() - from);
    let piece = bytes[from..from + len].to_vec();
    let removed = if random.below(2) == 0 { len.min(bytes.len() - to) } else { 0 };
    bytes.splice(to..to + removed, piece);
}

fn envelope_field(bytes: &mut [u8], random: &mut Random) {
    if bytes.len() >= 128 {
        let value = random.extreme(bytes.len());
        match random.below(16) {
            0 => put(bytes, 12, &(value as u32).to_le_bytes()),
            i => put(bytes, 8 * i, &value.to_le_bytes()),
        }
    }
}

fn directory_field(bytes: &mut [u8], random: &mut Random) {
    let Some((offset, len)) = checked_span(bytes, Section::Directory) else {
        return;
    };
    let value = random.extreme(bytes.len());
    let record = offset + 16 + 56 * random.below((len / 56).max(1));
    // (place, width) of every field.
    let (at, width) = random.pick(&[
        (offset, 8),
        (offset + 8, 8),
        (record, 4),
        (record + 4, 2),
        (record + 6, 1),
        (record + 6, 1),
        (record + 7, 1),
        (record + 8, 4),
        (record + 12, 4),
        (record + 16, 4),
        (record + 28, 4),
        (record + 32, 8),
        (record + 40, 8),
        (record + 48, 8),
    ]);
    let value = if at == record + 6 { value % 16 } else { value };
    if at + width <= bytes.len() {
        put(bytes, at, &value.to_le_bytes()[..width]);
    }
}

/// Replaces a number, a quoted word or a list in the JSON and puts the longer or shorter
/// header at the end of the file.
fn header_number(bytes: &mut Vec<u8>, random: &mut Random) {
    let Some((offset, len)) = checked_span(bytes, Section::Header) else {
        return;
    };
    let json = bytes[offset..offset + len].to_vec();
    let ends = |b: u8| matches!(b, b',' | b'}' | b']');
    let starts: Vec<usize> =
        (1..json.len()).filter(|&i| matches!(json[i - 1], b':' | b'[') && json[i] != b'{').collect();
    if starts.is_empty() {
        return;
    }
    let start = random.pick(&starts);
    let end = (start..json.len()).find(|&i| ends(json[i])).unwrap_or(json.len());
    let number = random.extreme(bytes.len());
    let value = match random.below(8) {
        0 => "null".to_owned(),
        1 => format!("-{number}"),
        2 => format!("{number}e30"),
        3 => "[]".to_owned(),
        4 => "\"x\"".to_owned(),
        5 => "0.0".to_owned(),
        _ => number.to_string(),
    };
    let mut new = json[..start].to_vec();
    new.extend_from_slice(value.as_bytes());
    new.extend_from_slice(&json[end..]);
    replace(bytes, Section::Header, &new);
}

/// Sets an aligned word at the start of the masks or the index.
fn section_word(bytes: &mut [u8], random: &mut Random) {
    let section = random.pick(&[Section::Masks, Section::Index, Section::Index]);
    let Some((offset, len)) = checked_span(bytes, section) else {
        return;
    };
    let at = offset + 4 * random.below(len.min(96) / 4);
    let value = random.extreme(bytes.len()) as u32;
    if at + 4 <= offset + len {
        put(bytes, at, &value.to_le_bytes());
    }
}

fn payload_bytes(bytes: &mut [u8], random: &mut Random) {
    let Some((offset, len)) = checked_span(bytes, Section::Data) else {
        return;
    };
    let at = offset + random.below(len);
    let value = random.extreme(bytes.len()).to_le_bytes();
    let width = random.pick(&[1, 1, 2, 4]).min(offset + len - at);
    put(bytes, at, &value[..width]);
}

#[test]
fn damaged_files_are_refused_or_keep_their_promises() {
    let seeds = [
        interop("fileA.cmf"),
        interop("fileB.cmf"),
        rich_file(),
        rich_file(),
        written(rich_header(), &all_dtypes(), Sections::default(), false),
    ];
    let accepted = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(2, usize::from).max(2) as u64;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (seeds, accepted) = (&seeds, &accepted);
            scope.spawn(move || {
                for case in (thread..CASES).step_by(threads as usize) {
                    let mut random = Random(case);
                    let seed = &seeds[random.below(seeds.len())];
                    let bytes = mutate(seed, &mut random);
                    let outcome =
                        std::panic::catch_unwind(|| CmfFile::from_bytes(bytes).inspect(exercise::exercise).is_ok());
                    match outcome {
                        Ok(ok) => accepted.fetch_add(u64::from(ok), Ordering::Relaxed),
                        Err(_) => panic!("case {case} panicked"),
                    };
                }
            });
        }
    });
    // Neither all refused nor all accepted, else the damage is not interesting.
    let accepted = accepted.into_inner();
    assert!(accepted > CASES / 20, "{accepted} of {CASES} accepted");
    assert!(accepted < CASES / 2, "{accepted} of {CASES} accepted");
}
