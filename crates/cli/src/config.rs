//! The configuration that comes from the environment. This is the only place where the environment is read; flags
//! override what it says.

use std::ffi::OsString;
use std::fmt::{self, Display};
use std::path::PathBuf;

use anyhow::{anyhow, bail};
use cortiq_convert::HubOptions;

/// Most threads that may be asked for.
pub const MAX_THREADS: usize = 1024;

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
    /// Model hub.
    pub hub: Hub,
    /// Colours on a terminal (off with `NO_COLOR`).
    pub color: Setting<bool>,
}

impl Config {
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
            hub: hub(variables)?,
            color: Setting::from_variable("NO_COLOR", variables.raw("NO_COLOR").map(|_| false), true),
        })
    }
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
        assert_eq!(config.hub.cache_dir.value.as_deref(), Some(Path::new("/home/u/.cache/huggingface/hub")));
        assert_eq!(config.hub.endpoint.value, "https://huggingface.co");
        assert!(!config.hub.offline.value && config.color.value);
    }

    #[test]
    fn values_and_where_they_come_from() {
        let config = read(&[
            ("CMF_THREADS", "0"),
            ("CMF_MAX_SEQ", "4096"),
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
        assert_eq!(config.hub.cache_dir, Setting { value: Some("/data/hf/hub".into()), origin: from("HF_HOME") });
        assert_eq!(config.hub.token.value.as_deref(), Some("hf_x"));
        assert_eq!(config.hub.endpoint.value, "http://mirror");
        assert_eq!(config.hub.offline, Setting { value: true, origin: from("HF_HUB_OFFLINE") });
        assert_eq!(config.color, Setting { value: false, origin: from("NO_COLOR") });
        let cache = read(&[("HF_HOME", "/data/hf"), ("HF_HUB_CACHE", "/c")]).unwrap().hub.cache_dir;
        assert_eq!(cache, Setting { value: Some("/c".into()), origin: from("HF_HUB_CACHE") });
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
            ("HF_HUB_OFFLINE", "maybe"),
        ] {
            let error = read(&[(name, value)]).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(error.contains(name) && error.contains(value), "{name}={value}: {error}");
        }
    }
}
