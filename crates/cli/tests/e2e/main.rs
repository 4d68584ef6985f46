//! End-to-end tests: they run the built program as a user would.

#[cfg(unix)]
mod chat;
mod convert;
mod environment;
mod files;
mod inspect;
mod measure;
mod run;
mod support;
mod tokenize;
mod usage;
