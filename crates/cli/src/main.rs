//! The program `cortiq`: commands, progress bars, terminal output.
//!
//! Owns: the command line, reading the environment (module `config`, nowhere else), what is printed where, and exit
//! codes: 0; 1 with one paragraph on the standard error; 2 for wrong usage. Must not know: formats, codecs, networks,
//! kernels, which the libraries below it own.

mod commands;
mod config;
mod demo;
mod files;
mod model_options;
mod output;
mod progress;
mod sampling_options;
mod speculative_options;
mod synthetic;
mod values;

use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use clap::Parser;

use crate::commands::Cli;
use crate::config::Config;
use crate::output::{StdoutClosed, Usage, paragraph, report_error};

fn main() -> ExitCode {
    let panicked = remember_panics();
    match std::panic::catch_unwind(run) {
        Ok(code) => code,
        Err(_) => {
            let what = panicked.lock().map(|text| text.clone()).unwrap_or_default();
            report_error(&format!("internal error, please report it: {what}"), false);
            ExitCode::FAILURE
        }
    }
}

/// Keeps the text of the last panic instead of printing it: libraries catch some panics of others and report them as
/// errors, and those must not show twice.
fn remember_panics() -> Arc<Mutex<String>> {
    let last = Arc::new(Mutex::new(String::new()));
    let kept = Arc::clone(&last);
    std::panic::set_hook(Box::new(move |info| {
        if let Ok(mut text) = kept.lock() {
            *text = info.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        }
    }));
    last
}

fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come here too, with code 0; a reader that has gone does not matter.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let config = match Config::from_environment() {
        Ok(config) => config,
        Err(error) => {
            report_error(&error.to_string(), false);
            return ExitCode::FAILURE;
        }
    };
    match cli.command.run(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<StdoutClosed>() => ExitCode::SUCCESS,
        Err(error) => {
            report_error(&paragraph(&error), config.color.value);
            if error.is::<Usage>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}
