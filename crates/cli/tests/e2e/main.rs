//! End-to-end tests: they run the built program as a user would.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[cfg(unix)]
mod chat;
mod convert;
mod environment;
mod files;
mod gguf;
mod gpu;
mod inspect;
mod layouts;
mod masks;
mod measure;
mod run;
mod speculative;
mod support;
mod tokenize;
mod usage;
