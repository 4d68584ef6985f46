//! `cortiq verify`.

use std::path::PathBuf;

use anyhow::bail;
use cortiq_cmf::CmfError;
use serde::Serialize;

use crate::model_options::{in_file, open_container};
use crate::output::{human_bytes, print_json, print_text};

/// Flags of `verify`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  cortiq verify model.cmf\n\n\
    Exit code 1 when something is wrong. Digests find deliberate changes only if the file's own digest is compared with \
    one from a trusted place.")]
pub struct Args {
    /// CMF file, or `demo` for the built-in model
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Default, Serialize)]
struct Report {
    ok: bool,
    problems: Vec<String>,
    hashes_checked: usize,
    hashes_absent: usize,
    digests_checked: usize,
    bytes: u64,
    /// BLAKE3 of the header; it identifies the whole content of a file with digests.
    #[serde(skip_serializing_if = "Option::is_none")]
    header_digest: Option<String>,
}

/// Compares all hashes and digests.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let file = match open_container(&args.model, false) {
        Ok(file) => file,
        // A file that cannot be read says nothing about its content; any other error is a finding.
        Err(error @ (CmfError::Io { .. } | CmfError::NotARegularFile(_))) => return Err(in_file(&args.model, error)),
        Err(error) => {
            if args.json {
                print_json(&Report { problems: vec![error.to_string()], ..Report::default() })?;
            }
            return Err(in_file(&args.model, error));
        }
    };
    let found = file.verify();
    let report = Report {
        ok: found.ok,
        problems: found.problems.iter().map(ToString::to_string).collect(),
        hashes_checked: found.hashes_checked,
        hashes_absent: found.hashes_absent,
        digests_checked: found.digests_checked,
        bytes: found.bytes,
        header_digest: Some(file.header_digest()),
    };
    if args.json {
        print_json(&report)?;
    } else if report.ok {
        print_text(&format!("ok: {}", counts(&report)))?;
        if let Some(digest) = report.header_digest.as_ref().filter(|_| report.digests_checked > 0) {
            print_text(&format!("digest: {digest}"))?;
        }
    }
    if !report.ok {
        bail!("{} is damaged: {}", args.model.display(), report.problems.join("; "));
    }
    Ok(())
}

fn counts(report: &Report) -> String {
    let digests = match report.digests_checked {
        0 => "no digests in this file".to_owned(),
        n => format!("{n} digests"),
    };
    format!("{} hashes, {digests}, {}", report.hashes_checked, human_bytes(report.bytes))
}
