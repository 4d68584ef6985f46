//! The configuration that comes from the environment. This is the only place where the environment is read; flags
//! override what it says.

use std::ffi::OsString;
use std::fmt::{self, Display};
use std::path::PathBuf;

use anyhow::{anyhow, bail};
use cortiq_convert::HubOptions;
use cortiq_gpu::Backend;
use cortiq_hybrid::GpuLayers;
use cortiq_model::KvDtype;

/// Most threads that may be asked for.
pub const MAX_THREADS: usize = 1024;

/// Most MiB of device memory that may be named.
pub const MAX_VRAM_MIB: usize = 1 << 30;

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// This environment variable.
    Environment(&'static str),
    /// This flag.
    Flag(&'static str),
}

impl Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("the default"),
            Self::Environment(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}

/// A value and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Where it comes from.
    pub origin: Origin,
}

impl<T> Setting<T> {
    fn default(value: T) -> Self {
        Self { value, origin: Origin::Default }
    }

    fn from_variable(name: &'static str, found: Option<T>, default: T) -> Self {
        match found {
            Some(value) => Self { value, origin: Origin::Environment(name) },
            None => Self::default(default),
        }
    }
}

impl<T: Clone> Setting<Option<T>> {
    /// This setting, unless the flag was given.
    pub fn or_flag(&self, name: &'static str, flag: Option<T>) -> Self {
        match flag {
            Some(value) => Self { value: Some(value), origin: Origin::Flag(name) },
            None => self.clone(),
        }
    }
}

impl<T: Clone> Setting<T> {
    /// The same origin with another value.
    pub fn map<U>(&self, change: impl FnOnce(T) -> U) -> Setting<U> {
        Setting { value: change(self.value.clone()), origin: self.origin }
    }
}

/// GPUs.
#[derive(Clone)]
pub struct GpuConfig {
    /// Whether `--executor auto` uses one (`CMF_GPU`): false = never, true = always.
    pub enabled: Setting<Option<bool>>,
    /// Interface (`WGPU_BACKEND`).
    pub backend: Setting<Option<Backend>>,
    /// Layers that a GPU gets (`CMF_GPU_LAYERS`).
    pub layers: Setting<Option<GpuLayers>>,
    /// Whether a GPU must be measured to be faster where nothing but `CMF_GPU` asks for it (`CMF_GPU_PROBE`).
    pub probe: Setting<bool>,
    /// MiB of device memory that a model may use (`CMF_GPU_VRAM_MB`).
    pub vram_mib: Setting<Option<u64>>,
}

/// Access to the model hub.
#[derive(Clone)]
pub struct Hub {
    /// Directory with the `models--…` folders (`HF_HUB_CACHE`, or `hub` in `HF_HOME`); none without a home directory.
    pub cache_dir: Setting<Option<PathBuf>>,
    /// Access token (`HF_TOKEN`, or the file `token` in `HF_HOME`). A secret: never printed.
    pub token: Setting<Option<String>>,
    /// Address (`HF_ENDPOINT`).
    pub endpoint: Setting<String>,
    /// Use the cache only (`HF_HUB_OFFLINE`).
    pub offline: Setting<bool>,
}

impl Hub {
    /// The options in the form that the importer takes.
    pub fn options(&self) -> anyhow::Result<HubOptions> {
        let cache_dir =
            self.cache_dir.value.clone().ok_or_else(|| {
                anyhow!("no home directory is known for the model cache; set HF_HOME or HF_HUB_CACHE")
            })?;
        Ok(HubOptions {
            cache_dir,
            token: self.token.value.clone(),
            endpoint: self.endpoint.value.clone(),
            offline: self.offline.value,
        })
    }
}

/// Everything that the environment says.
#[derive(Clone)]
pub struct Config {
    /// Threads of the cpu executor (`CMF_THREADS`; 0 means 1).
    pub threads: Setting<Option<usize>>,
    /// Longest context (`CMF_MAX_SEQ`); a model with less keeps its own limit.
    pub context: Setting<Option<usize>>,
    /// How keys and values are kept (`CMF_KV`).
    pub kv: Setting<Option<KvDtype>>,
    /// GPUs.
    pub gpu: GpuConfig,
    /// Model hub.
    pub hub: Hub,
    /// Colours on a terminal (off with `NO_COLOR`).
    pub color: Setting<bool>,
}

/// A setting as `cortiq doctor` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// What it is about.
    pub name: &'static str,
    /// The variable that sets it.
    pub variable: &'static str,
    /// Its value, or in words what holds where it was not set. Secrets are only said to be set.
    pub value: String,
    /// Where it comes from.
    pub origin: Origin,
}

impl Config {
    /// Every setting. All fields are taken apart, so that none is forgotten.
    pub fn shown(&self) -> Vec<Shown> {
        fn row<T>(name: &'static str, variable: &'static str, of: &Setting<T>, value: impl ToString) -> Shown {
            Shown { name, variable, value: value.to_string(), origin: of.origin }
        }
        /// The value, or what holds without one.
        fn or<T: ToString>(value: Option<T>, without: &str) -> String {
            value.map_or_else(|| without.to_owned(), |value| value.to_string())
        }
        let Self { threads, context, kv, gpu, hub, color } = self;
        let GpuConfig { enabled, backend, layers, probe, vram_mib } = gpu;
        let Hub { cache_dir, token, endpoint, offline } = hub;
        let on = |on: bool| if on { "on" } else { "off" };
        let kv_name = or(kv.value.map(KvDtype::name), "f32; f16 on a GPU in precision fast");
        let interface = or(backend.value.map(Backend::name), "any");
        let cache = or(cache_dir.value.as_ref().map(|dir| dir.display()), "unknown, since there is no home directory");
        vec![
            row("threads", "CMF_THREADS", threads, or(threads.value, "all processors")),
            row("longest context", "CMF_MAX_SEQ", context, or(context.value, "8192, or the model's own if shorter")),
            row("attention cache", "CMF_KV", kv, kv_name),
            row("GPU", "CMF_GPU", enabled, or(enabled.value.map(on), "where it is faster")),
            row("GPU interface", "WGPU_BACKEND", backend, interface),
            row("GPU layers", "CMF_GPU_LAYERS", layers, or(layers.value.as_ref(), "as many as fit")),
            row("GPU measured first", "CMF_GPU_PROBE", probe, on(probe.value)),
            row("GPU memory in MiB", "CMF_GPU_VRAM_MB", vram_mib, or(vram_mib.value, "by the device's own")),
            row("hub cache", "HF_HUB_CACHE", cache_dir, cache),
            row("hub token", "HF_TOKEN", token, if token.value.is_some() { "set (hidden)" } else { "none" }),
            row("hub address", "HF_ENDPOINT", endpoint, without_password(&endpoint.value)),
            row("hub offline", "HF_HUB_OFFLINE", offline, on(offline.value)),
            row("colours", "NO_COLOR", color, on(color.value)),
        ]
    }

    /// Reads the environment of this process.
    ///
    /// # Errors
    /// A value that cannot be understood; the error names the variable.
    pub fn from_environment() -> anyhow::Result<Self> {
        Self::read(&Variables { get: &|name| std::env::var_os(name), home: std::env::home_dir() })
    }

    fn read(variables: &Variables<'_>) -> anyhow::Result<Self> {
        let threads = variables.number("CMF_THREADS", 0, MAX_THREADS)?.map(|n| n.max(1));
        let context = variables.number("CMF_MAX_SEQ", 1, usize::MAX)?;
        Ok(Self {
            threads: Setting::from_variable("CMF_THREADS", threads.map(Some), None),
            context: Setting::from_variable("CMF_MAX_SEQ", context.map(Some), None),
            kv: Setting::from_variable("CMF_KV", variables.kv("CMF_KV")?.map(Some), None),
            gpu: gpu(variables)?,
            hub: hub(variables)?,
            color: Setting::from_variable("NO_COLOR", variables.raw("NO_COLOR").map(|_| false), true),
        })
    }
}

fn gpu(variables: &Variables<'_>) -> anyhow::Result<GpuConfig> {
    let enabled = variables.choice("CMF_GPU", &[("0", false), ("1", true), ("wgpu", true)])?;
    let backends = [
        ("vulkan", Backend::Vulkan),
        ("vk", Backend::Vulkan),
        ("dx12", Backend::Dx12),
        ("d3d12", Backend::Dx12),
        ("metal", Backend::Metal),
        ("mtl", Backend::Metal),
    ];
    let backend = variables.choice("WGPU_BACKEND", &backends)?;
    let vram = variables.number("CMF_GPU_VRAM_MB", 1, MAX_VRAM_MIB)?.map(|mib| mib as u64);
    Ok(GpuConfig {
        enabled: Setting::from_variable("CMF_GPU", enabled.map(Some), None),
        backend: Setting::from_variable("WGPU_BACKEND", backend.map(Some), None),
        layers: Setting::from_variable("CMF_GPU_LAYERS", variables.layers("CMF_GPU_LAYERS")?.map(Some), None),
        probe: Setting::from_variable("CMF_GPU_PROBE", variables.switch("CMF_GPU_PROBE")?, true),
        vram_mib: Setting::from_variable("CMF_GPU_VRAM_MB", vram.map(Some), None),
    })
}

fn hub(variables: &Variables<'_>) -> anyhow::Result<Hub> {
    let cache_home = variables.raw("XDG_CACHE_HOME").map(PathBuf::from);
    let default_home = cache_home.or_else(|| variables.home.as_ref().map(|home| home.join(".cache")));
    let hf_home = variables.raw("HF_HOME").map(PathBuf::from);
    let home = hf_home.clone().or_else(|| default_home.map(|dir| dir.join("huggingface")));
    let in_home = |name: &str| home.as_ref().map(|dir| dir.join(name));
    let cache_dir = match (variables.raw("HF_HUB_CACHE"), hf_home) {
        (Some(dir), _) => Setting { value: Some(dir.into()), origin: Origin::Environment("HF_HUB_CACHE") },
        (None, Some(_)) => Setting { value: in_home("hub"), origin: Origin::Environment("HF_HOME") },
        (None, None) => Setting::default(in_home("hub")),
    };
    let token = match variables.text("HF_TOKEN")? {
        Some(token) => Setting { value: Some(token.trim().to_owned()), origin: Origin::Environment("HF_TOKEN") },
        // Where `hf auth login` leaves it; most people have none.
        None => {
            Setting::default(in_home("token").and_then(|file| std::fs::read_to_string(file).ok()).and_then(|text| {
                let token = text.trim();
                (!token.is_empty()).then(|| token.to_owned())
            }))
        }
    };
    let endpoint = variables.text("HF_ENDPOINT")?.map(|url| url.trim_end_matches('/').to_owned());
    Ok(Hub {
        cache_dir,
        token,
        endpoint: Setting::from_variable("HF_ENDPOINT", endpoint, HubOptions::DEFAULT_ENDPOINT.to_owned()),
        offline: Setting::from_variable("HF_HUB_OFFLINE", variables.switch("HF_HUB_OFFLINE")?, false),
    })
}

/// An address without the user and password that it may have in it.
fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match host.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://(hidden)@{host}{path}"),
        None => url.to_owned(),
    }
}

/// The environment, replaceable in tests. An empty variable counts as not set.
struct Variables<'a> {
    get: &'a dyn Fn(&str) -> Option<OsString>,
    home: Option<PathBuf>,
}

impl Variables<'_> {
    fn raw(&self, name: &str) -> Option<OsString> {
        (self.get)(name).filter(|value| !value.is_empty())
    }

    fn text(&self, name: &str) -> anyhow::Result<Option<String>> {
        self.raw(name)
            .map(|value| value.into_string().map_err(|_| anyhow!("the environment variable {name} is not valid UTF-8")))
            .transpose()
    }

    fn number(&self, name: &str, least: usize, most: usize) -> anyhow::Result<Option<usize>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match text.trim().parse::<usize>() {
            Ok(number) if (least..=most).contains(&number) => Ok(Some(number)),
            _ if most == usize::MAX => {
                bail!("the environment variable {name} is `{text}`; it must be a whole number, {least} or more")
            }
            _ => bail!("the environment variable {name} is `{text}`; it must be a whole number from {least} to {most}"),
        }
    }

    fn kv(&self, name: &str) -> anyhow::Result<Option<KvDtype>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match KvDtype::from_name(&text.trim().to_ascii_lowercase()) {
            Some(kv) => Ok(Some(kv)),
            None => bail!("the environment variable {name} is `{text}`; it must be f32, f16 or q8"),
        }
    }

    fn layers(&self, name: &str) -> anyhow::Result<Option<GpuLayers>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        text.parse().map(Some).map_err(|error| anyhow!("the environment variable {name}: {error}"))
    }

    /// One of several words, in any case.
    fn choice<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> anyhow::Result<Option<T>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match words.iter().find(|(word, _)| text.trim().eq_ignore_ascii_case(word)) {
            Some((_, value)) => Ok(Some(*value)),
            None => {
                let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                bail!("the environment variable {name} is `{text}`; it must be one of {}", words.join(", "))
            }
        }
    }

    fn switch(&self, name: &str) -> anyhow::Result<Option<bool>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match text.trim().to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Ok(Some(true)),
            "0" | "false" | "no" | "off" => Ok(Some(false)),
            _ => bail!(
                "the environment variable {name} is `{text}`; it must be 1 or 0 (or true, yes, on, false, no, off)"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn read(pairs: &[(&str, &str)]) -> anyhow::Result<Config> {
        let get = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
        Config::read(&Variables { get: &get, home: Some("/home/u".into()) })
    }

    #[test]
    fn nothing_set() {
        let config = read(&[("CMF_THREADS", ""), ("NO_COLOR", "")]).unwrap();
        assert_eq!(config.threads, Setting::default(None));
        assert_eq!(config.context, Setting::default(None));
        assert_eq!(config.kv, Setting::default(None));
        assert_eq!(config.hub.cache_dir.value.as_deref(), Some(Path::new("/home/u/.cache/huggingface/hub")));
        assert_eq!(config.hub.endpoint.value, "https://huggingface.co");
        assert!(!config.hub.offline.value && config.color.value);
    }

    #[test]
    fn values_and_where_they_come_from() {
        let config = read(&[
            ("CMF_THREADS", "0"),
            ("CMF_MAX_SEQ", "4096"),
            ("CMF_KV", " Q8"),
            ("HF_HOME", "/data/hf"),
            ("HF_TOKEN", " hf_x\n"),
            ("HF_ENDPOINT", "http://mirror/"),
            ("HF_HUB_OFFLINE", "YES"),
            ("NO_COLOR", "1"),
        ])
        .unwrap();
        let from = Origin::Environment;
        assert_eq!(config.threads, Setting { value: Some(1), origin: from("CMF_THREADS") });
        assert_eq!(config.context, Setting { value: Some(4096), origin: from("CMF_MAX_SEQ") });
        assert_eq!(config.kv, Setting { value: Some(KvDtype::Q8), origin: from("CMF_KV") });
        assert_eq!(config.hub.cache_dir, Setting { value: Some("/data/hf/hub".into()), origin: from("HF_HOME") });
        assert_eq!(config.hub.token.value.as_deref(), Some("hf_x"));
        assert_eq!(config.hub.endpoint.value, "http://mirror");
        assert_eq!(config.hub.offline, Setting { value: true, origin: from("HF_HUB_OFFLINE") });
        assert_eq!(config.color, Setting { value: false, origin: from("NO_COLOR") });
        let cache = read(&[("HF_HOME", "/data/hf"), ("HF_HUB_CACHE", "/c")]).unwrap().hub.cache_dir;
        assert_eq!(cache, Setting { value: Some("/c".into()), origin: from("HF_HUB_CACHE") });
    }

    #[test]
    fn gpu_words() {
        let gpu = |name, value| read(&[(name, value)]).unwrap().gpu;
        for (value, enabled) in [("", None), ("0", Some(false)), ("1", Some(true)), ("WGPU", Some(true))] {
            assert_eq!(gpu("CMF_GPU", value).enabled.value, enabled, "{value}");
        }
        for (value, backend) in [("vk", Backend::Vulkan), ("D3D12", Backend::Dx12), (" mtl", Backend::Metal)] {
            let backend = Setting { value: Some(backend), origin: Origin::Environment("WGPU_BACKEND") };
            assert_eq!(gpu("WGPU_BACKEND", value).backend, backend);
        }
        assert_eq!(gpu("CMF_GPU_VRAM_MB", "4096").vram_mib.value, Some(4096));
        assert_eq!(gpu("CMF_GPU_LAYERS", "0-3").layers.value, Some(GpuLayers::These(vec![0..=3])));
        assert!(gpu("CMF_GPU", "1").probe.value && !gpu("CMF_GPU_PROBE", "off").probe.value);
    }

    #[test]
    fn everything_is_shown_but_secrets() {
        let pairs = [("HF_TOKEN", "hf_secret"), ("HF_ENDPOINT", "https://me:secret@mirror/hub"), ("CMF_GPU", "0")];
        let shown = read(&pairs).unwrap().shown();
        let find = |variable| shown.iter().find(|row| row.variable == variable).unwrap();
        assert_eq!(find("HF_TOKEN").value, "set (hidden)");
        assert_eq!(find("HF_ENDPOINT").value, "https://(hidden)@mirror/hub");
        assert_eq!(find("CMF_GPU").value, "off");
        assert_eq!(find("CMF_GPU").origin, Origin::Environment("CMF_GPU"));
        assert_eq!((find("CMF_KV").value.contains("f32"), find("CMF_KV").origin), (true, Origin::Default));
        assert!(!format!("{shown:?}").contains("secret"));
        assert_eq!(without_password("http://host/a@b"), "http://host/a@b");
    }

    #[test]
    fn a_flag_overrides() {
        let config = read(&[("CMF_THREADS", "3")]).unwrap();
        assert_eq!(config.threads.or_flag("--threads", None).value, Some(3));
        let flag = config.threads.or_flag("--threads", Some(2));
        assert_eq!((flag.value, flag.origin.to_string()), (Some(2), "--threads".to_owned()));
    }

    #[test]
    fn errors_name_the_variable() {
        for (name, value) in [
            ("CMF_THREADS", "many"),
            ("CMF_THREADS", "-1"),
            ("CMF_THREADS", "1025"),
            ("CMF_MAX_SEQ", "0"),
            ("CMF_MAX_SEQ", "99999999999999999999999"),
            ("CMF_KV", "q8k"),
            ("CMF_GPU", "yes"),
            ("WGPU_BACKEND", "gl"),
            ("CMF_GPU_VRAM_MB", "0"),
            ("CMF_GPU_LAYERS", "5-2"),
            ("CMF_GPU_PROBE", "twice"),
            ("CMF_GPU_VRAM_MB", "8GB"),
            ("HF_HUB_OFFLINE", "maybe"),
        ] {
            let error = read(&[(name, value)]).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(error.contains(name) && error.contains(value), "{name}={value}: {error}");
        }
    }
}
