//! Repositories of the model hub: ids and the cache on disk. Downloads are in `download.rs`.
//!
//! The cache is the one that all Hugging Face tools share:
//! `models--owner--name/{refs/<revision>, snapshots/<commit>/<file>, blobs/}`.

use std::path::{Component, Path, PathBuf};

use crate::hf::safetensors::{INDEX, SINGLE};
use crate::hf::tokenizer::{CHAT_TEMPLATE, TOKENIZER, TOKENIZER_CONFIG};
use crate::hf::{CONFIG, generation};
use crate::{ConvertError, Progress};

/// Where the model hub is and how to reach it. Filled in by the caller; nothing is read from the
/// environment here.
#[derive(Clone, PartialEq, Eq)]
pub struct HubOptions {
    /// The hub cache (the directory with the `models--…` folders).
    pub cache_dir: PathBuf,
    /// Access token; none for public repositories.
    pub token: Option<String>,
    /// Address of the hub.
    pub endpoint: String,
    /// Use cached files only.
    pub offline: bool,
}

impl HubOptions {
    /// The public hub.
    pub const DEFAULT_ENDPOINT: &'static str = "https://huggingface.co";

    /// Options for the public hub with `cache_dir` as the cache.
    pub fn new(cache_dir: impl Into<PathBuf>) -> Self {
        Self { cache_dir: cache_dir.into(), token: None, endpoint: Self::DEFAULT_ENDPOINT.to_owned(), offline: false }
    }
}

impl std::fmt::Debug for HubOptions {
    /// The token is a secret and does not appear.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HubOptions")
            .field("cache_dir", &self.cache_dir)
            .field("token", &self.token.as_ref().map(|_| "***"))
            .field("endpoint", &self.endpoint)
            .field("offline", &self.offline)
            .finish()
    }
}

/// A repository and the revision wanted of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RepoId {
    /// `owner/name`.
    pub(crate) id: String,
    /// Branch, tag or commit.
    pub(crate) revision: String,
}

impl RepoId {
    /// Parses `owner/name` or `owner/name@revision`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (id, revision) = text.split_once('@').unwrap_or((text, "main"));
        let (owner, name) = id.split_once('/')?;
        let plain = |part: &str| {
            !part.is_empty()
                && !part.starts_with('.')
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        };
        let revision_ok = !revision.is_empty()
            && !revision.contains(['\\', ':', '\0'])
            && Path::new(revision).components().all(|c| matches!(c, Component::Normal(_)));
        (plain(owner) && plain(name) && revision_ok).then(|| Self { id: id.to_owned(), revision: revision.to_owned() })
    }

    /// The repository's folder in the cache.
    pub(crate) fn folder(&self, cache: &Path) -> PathBuf {
        cache.join(format!("models--{}", self.id.replace('/', "--")))
    }

    /// The snapshot that the cache has for the revision.
    fn snapshot(&self, cache: &Path) -> Option<PathBuf> {
        let folder = self.folder(cache);
        let commit = match std::fs::read_to_string(folder.join("refs").join(&self.revision)) {
            Ok(commit) => commit.trim().to_owned(),
            // A commit needs no reference.
            Err(_) => self.revision.clone(),
        };
        let plain = !commit.is_empty() && commit.chars().all(|c| c.is_ascii_alphanumeric());
        let snapshot = folder.join("snapshots").join(commit);
        (plain && snapshot.is_dir()).then_some(snapshot)
    }
}

/// Files that are fetched when the repository has them; the weights come on top.
pub(crate) const SMALL_FILES: [&str; 5] = [CONFIG, generation::FILE, TOKENIZER, TOKENIZER_CONFIG, CHAT_TEMPLATE];

/// Brings all files of the checkpoint into the cache; returns the snapshot's directory.
///
/// # Errors
/// Offline: a file that is needed and not cached. Online: whatever the hub answers.
pub(crate) fn fetch(repo: &RepoId, options: &HubOptions, progress: &dyn Progress) -> Result<PathBuf, ConvertError> {
    if options.offline { cached(repo, options) } else { download(repo, options, progress) }
}

/// The cached snapshot, checked for the files that every checkpoint needs.
fn cached(repo: &RepoId, options: &HubOptions) -> Result<PathBuf, ConvertError> {
    let missing = |file: &str| ConvertError::Offline {
        repo: format!("{}@{}", repo.id, repo.revision),
        file: file.to_owned(),
        cache: options.cache_dir.clone(),
    };
    let snapshot = repo.snapshot(&options.cache_dir).ok_or_else(|| missing(CONFIG))?;
    for file in [CONFIG, TOKENIZER] {
        if !snapshot.join(file).is_file() {
            return Err(missing(file));
        }
    }
    if !snapshot.join(SINGLE).is_file() {
        let index = crate::hf::config::JsonFile::read(&snapshot, INDEX)?.ok_or_else(|| missing(SINGLE))?;
        for shard in crate::hf::safetensors::weight_map(&index)?.values() {
            if !snapshot.join(shard).is_file() {
                return Err(missing(shard));
            }
        }
    }
    Ok(snapshot)
}

#[cfg(not(feature = "hub"))]
fn download(repo: &RepoId, _options: &HubOptions, _progress: &dyn Progress) -> Result<PathBuf, ConvertError> {
    Err(ConvertError::HubDisabled { repo: repo.id.clone() })
}

#[cfg(feature = "hub")]
use super::download::download;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NoProgress;

    #[test]
    fn repository_ids() {
        let ok = |text: &str| RepoId::parse(text).map(|r| (r.id, r.revision));
        let pair = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(ok("a/b"), pair("a/b", "main"));
        assert_eq!(ok("Owner-1/Name_2.5@refs/pr/3"), pair("Owner-1/Name_2.5", "refs/pr/3"));
        for bad in ["", "a", "a/", "/b", "a/b/c", "../b", "a/..", "a/b@", "a/b@../x", "a/b@/x", "a b/c", "./a"] {
            assert_eq!(ok(bad), None, "{bad}");
        }
    }

    #[test]
    fn debug_hides_the_token() {
        let mut options = HubOptions::new("cache");
        options.token = Some("hf_secret".to_owned());
        assert!(!format!("{options:?}").contains("secret"));
    }

    #[test]
    fn offline_finds_the_snapshot_and_names_what_is_missing() {
        let cache = tempfile::tempdir().unwrap();
        let mut options = HubOptions::new(cache.path());
        options.offline = true;
        let repo = RepoId::parse("owner/name").unwrap();
        let message = |repo: &RepoId| fetch(repo, &options, &NoProgress).unwrap_err().to_string();
        assert!(message(&repo).starts_with("config.json of `owner/name@main`"), "{}", message(&repo));

        let folder = cache.path().join("models--owner--name");
        let snapshot = folder.join("snapshots/abc123");
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::create_dir_all(folder.join("refs")).unwrap();
        std::fs::write(folder.join("refs/main"), "abc123\n").unwrap();
        let write = |file: &str, text: &str| std::fs::write(snapshot.join(file), text).unwrap();
        write(CONFIG, "{}");
        assert!(message(&repo).starts_with("tokenizer.json of"));
        write(TOKENIZER, "{}");
        assert!(message(&repo).starts_with("model.safetensors of"));
        write(INDEX, r#"{"weight_map": {"t": "m-1.safetensors"}}"#);
        assert!(message(&repo).starts_with("m-1.safetensors of"));
        write("m-1.safetensors", "");
        assert_eq!(fetch(&repo, &options, &NoProgress).unwrap(), snapshot);
        let by_commit = RepoId::parse("owner/name@abc123").unwrap();
        assert_eq!(fetch(&by_commit, &options, &NoProgress).unwrap(), snapshot);
        std::fs::write(folder.join("refs/main"), "../../evil").unwrap();
        assert!(fetch(&repo, &options, &NoProgress).is_err());
    }
}
