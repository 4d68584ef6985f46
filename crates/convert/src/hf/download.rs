//! Downloads from the model hub into the shared cache.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hf_hub::api::sync::{ApiBuilder, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use crate::hf::CONFIG;
use crate::hf::config::JsonFile;
use crate::hf::hub::{HubOptions, RepoId, SMALL_FILES};
use crate::hf::safetensors::{INDEX, SINGLE, weight_map};
use crate::{ConvertError, Progress};

/// Attempts per file beyond the first; an interrupted download goes on where it stopped.
const RETRIES: usize = 3;

/// Downloads what the cache lacks and returns the snapshot's directory. All files come from the
/// one commit that the revision names now.
///
/// # Errors
/// [`ConvertError::Hub`] naming the repository and the file.
pub(crate) fn download(repo: &RepoId, options: &HubOptions, progress: &dyn Progress) -> Result<PathBuf, ConvertError> {
    let failed = |file: &str, reason: String| hub_error(repo, file, reason);
    // The cache compares absolute paths when it links files.
    let cache_dir = std::path::absolute(&options.cache_dir).map_err(|e| ConvertError::io(&options.cache_dir, e))?;
    let cache = Cache::new(cache_dir.clone());
    let api = ApiBuilder::from_cache(cache.clone())
        .with_progress(false)
        .with_retries(RETRIES)
        .with_endpoint(options.endpoint.trim_end_matches('/').to_owned())
        .with_token(options.token.clone().or_else(|| cache.token()))
        .build()
        .map_err(|e| failed("client", e.to_string()))?;
    let wanted = |revision: &str| Repo::with_revision(repo.id.clone(), RepoType::Model, revision.to_owned());
    let info = api.repo(wanted(&repo.revision)).info().map_err(|e| {
        let hint = "does it exist, and may the token read it? Cached files can be used offline";
        failed("file list", format!("{e} ({hint})"))
    })?;
    if info.sha.is_empty() || !info.sha.chars().all(|c| c.is_ascii_alphanumeric()) {
        return Err(failed("file list", format!("has the malformed commit `{}`", info.sha)));
    }
    let commit = Commit {
        repo,
        remote: api.repo(wanted(&info.sha)),
        snapshot: repo.folder(&cache_dir).join("snapshots").join(&info.sha),
        offered: info.siblings.into_iter().map(|s| s.rfilename).collect(),
        progress,
    };
    commit.get_all()?;
    // Later the revision is found offline.
    cache.repo(wanted(&repo.revision)).create_ref(&info.sha).map_err(|e| ConvertError::io(&cache_dir, e))?;
    Ok(commit.snapshot)
}

fn hub_error(repo: &RepoId, file: &str, reason: String) -> ConvertError {
    ConvertError::Hub { repo: format!("{}@{}", repo.id, repo.revision), file: file.to_owned(), reason }
}

/// One commit of a repository and its snapshot in the cache.
struct Commit<'a> {
    repo: &'a RepoId,
    remote: ApiRepo,
    snapshot: PathBuf,
    offered: BTreeSet<String>,
    progress: &'a dyn Progress,
}

impl Commit<'_> {
    fn get_all(&self) -> Result<(), ConvertError> {
        if !self.offered.contains(CONFIG) {
            return Err(hub_error(self.repo, CONFIG, "the repository does not have it".to_owned()));
        }
        for file in SMALL_FILES.into_iter().filter(|file| self.offered.contains(*file)) {
            self.get(file)?;
        }
        if self.offered.contains(SINGLE) {
            return self.get(SINGLE);
        }
        if !self.offered.contains(INDEX) {
            return Err(hub_error(self.repo, SINGLE, "the repository has no safetensors weights".to_owned()));
        }
        self.get(INDEX)?;
        let index = JsonFile::read(&self.snapshot, INDEX)?
            .ok_or_else(|| hub_error(self.repo, INDEX, "vanished from the cache".to_owned()))?;
        let shards: BTreeSet<String> = weight_map(&index)?.into_values().collect();
        shards.iter().try_for_each(|shard| self.get(shard))
    }

    /// Brings one file into the snapshot, if it is not there.
    fn get(&self, file: &str) -> Result<(), ConvertError> {
        let path: &Path = &self.snapshot.join(file);
        if path.is_file() {
            return Ok(());
        }
        let meter = Meter { progress: self.progress, file: file.to_owned(), done: 0, total: 0 };
        self.remote.download_with_progress(file, meter).map_err(|e| hub_error(self.repo, file, e.to_string()))?;
        Ok(())
    }
}

/// Passes download progress on.
struct Meter<'a> {
    progress: &'a dyn Progress,
    file: String,
    done: u64,
    total: u64,
}

impl hf_hub::api::Progress for Meter<'_> {
    fn init(&mut self, size: usize, _filename: &str) {
        // Called again for each attempt, which then reports what it starts with.
        (self.done, self.total) = (0, size as u64);
    }

    fn update(&mut self, size: usize) {
        self.done = self.done.saturating_add(size as u64);
        self.progress.download(&self.file, self.done, self.total);
    }

    fn finish(&mut self) {}
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::hf::hub::fetch;
    use crate::hf::tokenizer::TOKENIZER;
    use crate::{HfSource, NoProgress};

    const COMMIT: &str = "0123456789abcdef";

    /// A hub with one repository, `owner/name`, on a local port.
    struct Hub {
        endpoint: String,
        requests: Arc<Mutex<Vec<String>>>,
    }

    impl Hub {
        fn serve(files: BTreeMap<String, Vec<u8>>) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let endpoint = format!("http://{}", listener.local_addr().unwrap());
            let requests = Arc::new(Mutex::new(Vec::new()));
            let log = Arc::clone(&requests);
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let mut stream = stream.unwrap();
                    let lines: Vec<String> = BufReader::new(stream.try_clone().unwrap())
                        .lines()
                        .map_while(Result::ok)
                        .take_while(|line| !line.is_empty())
                        .collect();
                    let Some(path) = lines.first().and_then(|l| l.split(' ').nth(1)) else { continue };
                    log.lock().unwrap().push(path.to_owned());
                    let one_byte = lines.iter().any(|l| l.to_lowercase().ends_with("bytes=0-0"));
                    stream.write_all(&answer(&files, path, one_byte)).unwrap();
                }
            });
            Self { endpoint, requests }
        }

        fn options(&self, cache: &Path) -> HubOptions {
            HubOptions { endpoint: format!("{}/", self.endpoint), ..HubOptions::new(cache) }
        }
    }

    fn answer(files: &BTreeMap<String, Vec<u8>>, path: &str, one_byte: bool) -> Vec<u8> {
        let reply = |status: &str, headers: &str, body: &[u8]| {
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n");
            [head.as_bytes(), body].concat()
        };
        if path == "/api/models/owner/name/revision/main" {
            let siblings: Vec<_> = files.keys().map(|f| serde_json::json!({"rfilename": f})).collect();
            let info = serde_json::json!({"sha": COMMIT, "siblings": siblings});
            return reply("200 OK", "content-type: application/json\r\n", info.to_string().as_bytes());
        }
        let file = path.strip_prefix(&format!("/owner/name/resolve/{COMMIT}/")).and_then(|f| files.get_key_value(f));
        let Some((name, bytes)) = file else { return reply("404 Not Found", "", b"") };
        let end = if one_byte { 1 } else { bytes.len() };
        let headers = format!(
            "etag: \"{name}-tag\"\r\nx-repo-commit: {COMMIT}\r\ncontent-range: bytes 0-{}/{}\r\n",
            end - 1,
            bytes.len()
        );
        reply("206 Partial Content", &headers, &bytes[..end])
    }

    fn fixture_files(name: &str) -> BTreeMap<String, Vec<u8>> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name);
        let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
        entries.map(|p| (p.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(p).unwrap())).collect()
    }

    #[derive(Default)]
    struct Downloads(RefCell<BTreeMap<String, (u64, u64)>>);

    impl Progress for Downloads {
        fn download(&self, file: &str, done_bytes: u64, total_bytes: u64) {
            self.0.borrow_mut().insert(file.to_owned(), (done_bytes, total_bytes));
        }
        fn start(&self, _total_bytes: u64, _tensors: usize) {}
        fn tensor(&self, _name: &str, _done_bytes: u64) {}
        fn finish(&self) {}
    }

    #[test]
    fn a_sharded_repository_is_fetched_once_and_then_found_offline() {
        let files = fixture_files("llama_gqa");
        let hub = Hub::serve(files.clone());
        let cache = tempfile::tempdir().unwrap();
        let mut options = hub.options(cache.path());
        let progress = Downloads::default();
        let source = HfSource::open("owner/name", &options, &progress).unwrap();
        let count = source.import().unwrap().tensors.len();
        let progress = progress.0.into_inner();
        assert_eq!(progress.keys().filter(|f| f.ends_with(".safetensors")).count(), 5);
        for (file, (done, total)) in progress {
            assert_eq!((done, total), (files[&file].len() as u64, files[&file].len() as u64), "{file}");
        }
        // Files that are no part of a conversion are not fetched.
        let requests = hub.requests.lock().unwrap().clone();
        assert!(!requests.iter().any(|path| path.contains("golden") || path.contains("v4")), "{requests:?}");

        HfSource::open("owner/name", &options, &NoProgress).unwrap();
        let again = hub.requests.lock().unwrap()[requests.len()..].to_vec();
        assert_eq!(again, ["/api/models/owner/name/revision/main"]);

        options.offline = true;
        let offline = HfSource::open("owner/name", &options, &NoProgress).unwrap();
        assert_eq!(offline.dir(), source.dir());
        assert_eq!(offline.import().unwrap().tensors.len(), count);
        assert_eq!(hub.requests.lock().unwrap().len(), requests.len() + 1);
    }

    #[test]
    fn a_repository_without_what_is_needed_is_named() {
        let repo = RepoId::parse("owner/name").unwrap();
        let cases = [("none", vec![]), (SINGLE, vec![CONFIG, TOKENIZER]), (CONFIG, vec![TOKENIZER, SINGLE])];
        for (needle, names) in cases {
            let files = names.iter().map(|n| ((*n).to_owned(), b"{}".to_vec())).collect();
            let hub = Hub::serve(files);
            let cache = tempfile::tempdir().unwrap();
            let options = hub.options(cache.path());
            let error = fetch(&repo, &options, &NoProgress).unwrap_err().to_string();
            let needle = if needle == "none" { CONFIG } else { needle };
            assert!(error.starts_with(&format!("{needle} of `owner/name@main`: ")), "{error}");
        }
        let hub = Hub::serve(BTreeMap::new());
        let cache = tempfile::tempdir().unwrap();
        let missing = RepoId::parse("owner/other").unwrap();
        let error = fetch(&missing, &hub.options(cache.path()), &NoProgress).unwrap_err().to_string();
        assert!(error.starts_with("file list of `owner/other@main`: ") && error.contains("404"), "{error}");
    }
}
