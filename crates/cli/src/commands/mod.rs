//! The commands: one file each, with its flags and what it does.

mod bench;
mod bench_profile;
mod bench_speculative;
mod chat;
mod completions;
mod convert;
mod doctor;
mod info;
mod logits;
mod masks;
mod ppl;
mod run;
mod skill;
mod tokenize;
mod verify;

use clap::{Parser, Subcommand};

use crate::config::Config;

/// The command line.
#[derive(Parser, Debug)]
#[command(
    name = "cortiq",
    version,
    about = "Runs language models kept in one memory-mapped CMF file",
    after_help = "Examples:\n  \
        cortiq convert Qwen/Qwen3-0.6B -o qwen3.cmf --quant q8\n  \
        cortiq run qwen3.cmf -p 'Why is the sky blue?'\n  \
        cortiq run qwen3.cmf\n\n\
        `cortiq help COMMAND` tells more about each command. Exit codes: 0; 1 with one paragraph on the standard \
        error; 2 for wrong usage."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Make a CMF file of a Hugging Face checkpoint
    Convert(convert::ConvertArgs),
    /// Make a CMF file of a GGUF file
    ImportGguf(convert::ImportGgufArgs),
    /// Answer a prompt, or chat
    Run(Box<run::Args>),
    /// Print the logits after a list of token ids, as JSON
    Logits(logits::Args),
    /// Turn the standard input into token ids, or ids into text
    Tokenize(tokenize::Args),
    /// Measure the perplexity of a text
    Ppl(ppl::Args),
    /// Measure speed
    Bench(bench::Args),
    /// Show the configuration, what the machine has, and what is used and why
    Doctor(doctor::Args),
    /// Describe a CMF file
    Info(info::Args),
    /// Compare all hashes and digests of a CMF file
    Verify(verify::Args),
    /// List the masks of a CMF file
    Masks(masks::Args),
    /// List the skills of a CMF file
    Skill(skill::Args),
    /// Print the completion script of a shell
    Completions(completions::Args),
}

impl Command {
    /// Does it.
    pub fn run(self, config: &Config) -> anyhow::Result<()> {
        match self {
            Self::Convert(args) => convert::convert(args, config),
            Self::ImportGguf(args) => convert::import_gguf(args),
            Self::Run(args) => run::run(*args, config),
            Self::Logits(args) => logits::run(&args, config),
            Self::Tokenize(args) => tokenize::run(&args),
            Self::Ppl(args) => ppl::run(&args, config),
            Self::Bench(args) => bench::run(&args, config),
            Self::Doctor(args) => doctor::run(&args, config),
            Self::Info(args) => info::run(&args),
            Self::Verify(args) => verify::run(&args),
            Self::Masks(args) => masks::run(&args),
            Self::Skill(args) => skill::run(&args),
            Self::Completions(args) => completions::run(&args),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let example = format!("cortiq {} ", command.get_name());
            assert!(help.contains("Example") && help.contains(&example), "{}: {help}", command.get_name());
        }
    }
}
