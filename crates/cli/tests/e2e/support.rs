//! Running the program, and what every test says about the outcome.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// No command of these tests takes nearly as long; one that does hangs.
const DEADLINE: Duration = Duration::from_secs(240);

/// Variables that the program reads.
const CONFIGURATION: [&str; 14] = [
    "CMF_GPU",
    "CMF_GPU_LAYERS",
    "CMF_GPU_PROBE",
    "CMF_GPU_VRAM_MB",
    "WGPU_BACKEND",
    "CMF_THREADS",
    "CMF_MAX_SEQ",
    "CMF_KV",
    "HF_TOKEN",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "NO_COLOR",
];

/// A command without the caller's own configuration.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cortiq"));
    for name in CONFIGURATION {
        command.env_remove(name);
    }
    // Whatever GPU the machine has must not decide what the tests see.
    command.env("CMF_GPU", "0");
    command
}

/// A finished run.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs the program with an empty standard input.
pub fn cortiq<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Outcome {
    cortiq_with(args, "")
}

/// Runs the program with `input` on its standard input.
pub fn cortiq_with<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>, input: impl AsRef<[u8]>) -> Outcome {
    run(command().args(args), input.as_ref())
}

/// Runs a command until it ends or the deadline passes, which is a failure.
pub fn run(command: &mut Command, input: &[u8]) -> Outcome {
    finish(start(command, input))
}

/// Starts a command with `input` on its standard input.
pub fn start(command: &mut Command, input: &[u8]) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("start");
    let mut stdin = child.stdin.take().expect("stdin");
    let input = input.to_vec();
    // The program may end without reading it.
    std::thread::spawn(move || stdin.write_all(&input));
    child
}

/// Waits for a started command.
pub fn finish(mut child: Child) -> Outcome {
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let deadline = Instant::now() + DEADLINE;
    let status = loop {
        if let Some(status) = child.try_wait().expect("wait") {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().expect("kill");
            panic!("still running after {DEADLINE:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text = |thread: JoinHandle<Vec<u8>>| String::from_utf8(thread.join().expect("read")).expect("UTF-8");
    let outcome = Outcome { code: status.code(), stdout: text(stdout), stderr: text(stderr) };
    assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
    outcome
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut bytes).expect("read");
        }
        bytes
    })
}

impl Outcome {
    /// It went well.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    /// It went well and printed exactly one JSON object.
    #[track_caller]
    pub fn json(self) -> Value {
        let outcome = self.ok();
        one_object(&outcome.stdout)
    }

    /// It failed with code 1, nothing on the standard output, and one line on the standard error that contains all of
    /// `words`.
    #[track_caller]
    pub fn fails(self, words: &[&str]) -> Self {
        assert_eq!(self.stdout, "", "{self:?}");
        self.fails_after_output(words)
    }

    /// As [`Outcome::fails`], but there may be output.
    #[track_caller]
    pub fn fails_after_output(self, words: &[&str]) -> Self {
        assert_eq!(self.code, Some(1), "{self:?}");
        assert!(self.stderr.starts_with("error: ") && self.stderr.ends_with('\n'), "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        for internal in ["Err(", "Error {", "Some(", "stack backtrace"] {
            assert!(!self.stderr.contains(internal), "{self:?}");
        }
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in {self:?}");
        }
        self
    }

    /// It was wrong usage: code 2 and an explanation that contains all of `words`.
    #[track_caller]
    pub fn misused(self, words: &[&str]) {
        assert_eq!(self.code, Some(2), "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        assert!(self.stderr.starts_with("error: "), "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in {self:?}");
        }
    }
}

/// The one JSON object of a text, which is one line.
#[track_caller]
pub fn one_object(text: &str) -> Value {
    assert_eq!(text.lines().count(), 1, "{text}");
    let value: Value = serde_json::from_str(text).expect("JSON");
    assert!(value.is_object(), "{text}");
    value
}

/// The keys of an object, sorted.
pub fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().expect("object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

/// A list of token ids.
pub fn ids(value: &Value) -> Vec<u64> {
    value.as_array().expect("list").iter().map(|v| v.as_u64().expect("id")).collect()
}

/// A list of numbers.
pub fn floats(value: &Value) -> Vec<f64> {
    value.as_array().expect("list").iter().map(|v| v.as_f64().expect("number")).collect()
}

/// Ids as `--ids` takes them.
pub fn joined(ids: &[u64]) -> String {
    ids.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

/// A file of the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Reads a JSON file.
pub fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("read")).expect("JSON")
}

/// A directory for one test, and files in it.
pub struct Room {
    dir: TempDir,
}

impl Room {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("temporary directory") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file with these bytes.
    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).expect("write");
        path
    }

    /// A copy of a checkpoint of the fixtures.
    pub fn checkpoint(&self, model: &str) -> PathBuf {
        let copy = self.path(model);
        std::fs::create_dir(&copy).expect("directory");
        for entry in std::fs::read_dir(repository("fixtures/models").join(model)).expect("fixture") {
            let entry = entry.expect("entry");
            if entry.file_name() != "golden.json" {
                std::fs::copy(entry.path(), copy.join(entry.file_name())).expect("copy");
            }
        }
        copy
    }

    /// A checkpoint of the fixtures as a container.
    pub fn model(&self, model: &str, quant: &str) -> PathBuf {
        let output = self.path(&format!("{model}-{quant}.cmf"));
        convert(&repository("fixtures/models").join(model), &output, &["--quant", quant]).ok();
        output
    }

    /// Names of everything in the directory, sorted.
    pub fn names(&self) -> Vec<String> {
        let name = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("entry").file_name().into_string();
        let mut names: Vec<_> =
            std::fs::read_dir(self.dir.path()).expect("list").map(|e| name(e).expect("UTF-8")).collect();
        names.sort();
        names
    }
}

/// `cortiq convert SOURCE -o OUTPUT FLAGS`.
pub fn convert(source: &Path, output: &Path, flags: &[&str]) -> Outcome {
    run(command().arg("convert").arg(source).arg("-o").arg(output).args(flags), b"")
}

/// `cortiq COMMAND MODEL FLAGS`.
pub fn on(name: &str, model: &Path, flags: &[&str]) -> Outcome {
    on_with(name, model, flags, b"")
}

/// [`on`] with a standard input.
pub fn on_with(name: &str, model: &Path, flags: &[&str], input: &[u8]) -> Outcome {
    run(command().arg(name).arg(model).args(flags), input)
}

/// A sequence of a fixture's golden values.
pub fn golden(model: &str, sequence: usize) -> Value {
    let golden = read_json(&repository("fixtures/models").join(model).join("golden.json"));
    golden["sequences"][sequence].clone()
}
