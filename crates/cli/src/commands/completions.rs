//! `cortiq completions`.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::commands::Cli;
use crate::output::write_stdout;

/// Flags of `completions`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  cortiq completions bash > ~/.local/share/bash-completion/completions/cortiq")]
pub struct Args {
    /// Shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// Prints the script.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "cortiq", &mut script);
    write_stdout(&script)
}
