//! The interactive chat, through a pseudo-terminal.

use std::path::Path;

use rexpect::session::{PtySession, spawn_command};

use crate::support::{Room, command, ids, on_with};

const TIMEOUT_MS: u64 = 120_000;

fn chat(model: &Path, flags: &[&str]) -> PtySession {
    let mut command = command();
    command.env("TERM", "xterm").arg("run").arg(model).args(flags);
    let mut session = spawn_command(command, Some(TIMEOUT_MS)).expect("start");
    session.exp_string("Ctrl-D leaves").expect("help");
    session.exp_string("> ").expect("prompt");
    session
}

#[track_caller]
fn ends_with(session: PtySession, code: i32) {
    // Its type is not exported: `Exited(Pid(1234), 0)`.
    let status = format!("{:?}", session.process().wait().expect("wait"));
    assert!(status.starts_with("Exited(") && status.ends_with(&format!(", {code})")), "{status}");
}

#[test]
fn only_new_tokens_are_computed() {
    let room = Room::new();
    let model = room.model("llama_gqa", "q8");
    // A reply of one known token, so that it encodes to the same token again.
    let word = ids(&on_with("tokenize", &model, &["--no-special", "--json"], b"e").json()["ids"]);
    let bias = format!("{}=100", word.last().unwrap());
    let mut session = chat(&model, &["-n", "1", "--greedy", "--logit-bias", &bias]);
    session.send_line("Good day").unwrap();
    let (_, first) = session.exp_regex(r"\[prompt: [0-9]+ tokens").unwrap();
    session.exp_string("> ").unwrap();
    session.send_line("Good day").unwrap();
    let (_, second) = session.exp_regex(r"\[prompt: [0-9]+ tokens").unwrap();
    session.exp_string("> ").unwrap();
    let count = |text: &str| text.chars().filter(char::is_ascii_digit).collect::<String>().parse::<usize>().unwrap();
    // The second prompt holds the first, the reply, and then as many tokens again as the first had.
    assert!(count(&first) > 8 && count(&second) < count(&first) + 8, "{first} {second}");
    session.send_line("/clear").unwrap();
    session.exp_string("> ").unwrap();
    session.send_control('d').unwrap();
    ends_with(session, 0);
}

#[test]
fn an_interrupt_stops_the_reply_only() {
    let room = Room::new();
    let model = room.model("llama_gqa", "f32");
    // Slow enough to be stopped long before the context is full.
    let mut session = chat(&model, &["--ignore-eos", "--temperature", "1", "--executor", "reference"]);
    session.send_line("Tell me a story").unwrap();
    session.exp_string("story").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    session.send_control('c').unwrap();
    session.exp_string("(stopped)").unwrap();
    session.exp_string("cancelled]").unwrap();
    session.exp_string("> ").unwrap();
    // At the prompt it only says how to leave.
    session.send_control('c').unwrap();
    session.exp_string("(Ctrl-D leaves)").unwrap();
    session.exp_string("> ").unwrap();
    session.send_control('d').unwrap();
    ends_with(session, 0);
}

#[test]
fn the_history_comes_back() {
    let room = Room::new();
    let model = room.model("llama_gqa", "q8");
    let mut session = chat(&model, &["-n", "2", "--greedy"]);
    session.send_line("remember me").unwrap();
    session.exp_string("length]").unwrap();
    session.exp_string("> ").unwrap();
    session.send("\x1b[A").unwrap();
    session.flush().unwrap();
    session.exp_string("remember me").unwrap();
    session.send_line("").unwrap();
    session.exp_string("length]").unwrap();
    session.exp_string("> ").unwrap();
    session.send_line("/quit").unwrap();
    ends_with(session, 0);
}

#[test]
fn a_full_context_does_not_end_the_chat() {
    let room = Room::new();
    let model = room.model("llama_gqa", "q8");
    let mut session = chat(&model, &["-n", "4", "--greedy", "--ctx", "24"]);
    session.send_line(&"very long ".repeat(20)).unwrap();
    session.exp_string("context of 24").unwrap();
    session.exp_string("> ").unwrap();
    session.send_line("hi").unwrap();
    session.exp_string("[prompt: ").unwrap();
    session.exp_string("> ").unwrap();
    session.send_control('d').unwrap();
    ends_with(session, 0);
}

#[test]
fn a_chat_needs_a_prompt_with_json() {
    let room = Room::new();
    let model = room.model("llama_gqa", "q8");
    let mut command = command();
    command.env("TERM", "xterm").arg("run").arg(&model).arg("--json");
    let mut session = spawn_command(command, Some(TIMEOUT_MS)).expect("start");
    session.exp_string("needs a terminal").unwrap();
    ends_with(session, 2);
}
