//! Chat templates: a conversation rendered to the prompt text of the model, as Hugging Face's `transformers` does it.
//!
//! The language is Jinja with `trim_blocks`, `lstrip_blocks`, loop controls, Python's methods on
//! strings and maps, Python's spelling of printed values, and the `{% generation %}` block (which only
//! marks text and changes nothing here).

mod generation_tag;
mod json;
mod python;

use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value};

use crate::EngineError;

/// Longest template accepted, in bytes. Published ones have up to some 20 KB.
pub const MAX_TEMPLATE_BYTES: usize = 256 * 1024;
/// Work allowed for one rendering: about one unit per instruction and per 64 bytes made. Ends endless
/// templates within about a second.
///
/// This stops mistakes, not every malicious template: the template engine does not count the text of
/// a list converted by `~` before it is made, and frees lists recursively, so that one nested tens of
/// thousands of levels deep overflows the stack. A template is part of a model file, as trusted as its
/// weights; messages and tools, which come from users, can do neither.
pub const TEMPLATE_FUEL: u64 = 1_000_000;
/// Depth of nested calls and blocks allowed in a template (a macro call costs several units).
pub const TEMPLATE_RECURSION: usize = 300;

/// The name errors refer to; it has no extension, so nothing is escaped.
const TEMPLATE_NAME: &str = "chat";
/// Variables that always come from the request.
const RESERVED: [&str; 5] = ["messages", "tools", "documents", "add_generation_prompt", "enable_thinking"];

/// A compiled chat template with the special tokens of its model.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Vec<(String, String)>,
}

/// What a template is rendered with.
#[derive(Debug, Clone, Default)]
pub struct ChatRequest<'a> {
    /// The messages, each an object with `role` and `content` (and `tool_calls`, `name`, ...), passed
    /// on as they are, keys in their order.
    pub messages: &'a [serde_json::Value],
    /// Tools the model may call, in OpenAI's form; `none` in the template when absent.
    pub tools: Option<&'a [serde_json::Value]>,
    /// Whether the prompt ends with the start of the assistant's answer.
    pub add_generation_prompt: bool,
    /// Defined in the template only when given: templates differ in what they do without it.
    pub enable_thinking: Option<bool>,
    /// Further variables of the request; they take precedence over special tokens of the same name.
    pub extra: Option<&'a serde_json::Map<String, serde_json::Value>>,
}

/// Marks an error as made by the template's own `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Compiles a template. `special_tokens` are name and text, such as `bos_token` and `<s>`; a name
    /// that is left out is undefined in the template and prints as nothing.
    ///
    /// # Errors
    /// [`EngineError::ChatTemplate`] for a template with a syntax error or above [`MAX_TEMPLATE_BYTES`].
    pub fn new<N, T>(source: &str, special_tokens: impl IntoIterator<Item = (N, T)>) -> Result<Self, EngineError>
    where
        N: Into<String>,
        T: Into<String>,
    {
        Self::with_clock(source, special_tokens, jiff::ZonedDateTime::now)
    }

    /// Like [`ChatTemplate::new`] with a clock for `strftime_now`, whose default is the local time.
    ///
    /// # Errors
    /// As [`ChatTemplate::new`].
    pub fn with_clock<N, T>(
        source: &str,
        special_tokens: impl IntoIterator<Item = (N, T)>,
        clock: impl Fn() -> jiff::ZonedDateTime + Send + Sync + 'static,
    ) -> Result<Self, EngineError>
    where
        N: Into<String>,
        T: Into<String>,
    {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(EngineError::ChatTemplate {
                line: None,
                message: format!("it has {} bytes; at most {MAX_TEMPLATE_BYTES} are allowed", source.len()),
            });
        }
        let mut environment = environment(clock).map_err(|e| template_error(&e))?;
        environment
            .add_template_owned(TEMPLATE_NAME, generation_tag::replace(source))
            .map_err(|e| template_error(&e))?;
        let special_tokens = special_tokens.into_iter().map(|(name, text)| (name.into(), text.into())).collect();
        Ok(Self { environment, special_tokens })
    }

    /// Renders a conversation. The text has its special tokens written out, so it is to be encoded
    /// without adding any.
    ///
    /// # Errors
    /// [`EngineError::ChatTemplate`] with the template's own message where it raises one (roles out of
    /// order, a system message it has no place for), uses too much work, or fails otherwise.
    pub fn render(&self, request: &ChatRequest<'_>) -> Result<String, EngineError> {
        let context = self.context(request)?;
        self.environment
            .get_template(TEMPLATE_NAME)
            .and_then(|template| template.render(context))
            .map_err(|e| template_error(&e))
    }

    fn context(&self, request: &ChatRequest<'_>) -> Result<Value, EngineError> {
        let list = |items: &[serde_json::Value]| items.iter().map(json::to_value).collect::<Value>();
        let mut pairs: Vec<(String, Value)> =
            self.special_tokens.iter().map(|(name, text)| (name.clone(), Value::from(text.as_str()))).collect();
        for (name, value) in request.extra.into_iter().flatten() {
            if RESERVED.contains(&name.as_str()) {
                return Err(EngineError::ChatTemplate {
                    line: None,
                    message: format!("the variable {name:?} cannot be given as an extra one"),
                });
            }
            pairs.push((name.clone(), json::to_value(value)));
        }
        let mut set = |name: &str, value: Value| pairs.push((name.to_owned(), value));
        set("messages", list(request.messages));
        set("tools", request.tools.map_or(Value::from(()), list));
        set("documents", Value::from(()));
        set("add_generation_prompt", request.add_generation_prompt.into());
        if let Some(enable) = request.enable_thinking {
            set("enable_thinking", enable.into());
        }
        Ok(Value::from_pairs(pairs))
    }
}

/// The environment `transformers` renders chat templates in.
fn environment(clock: impl Fn() -> jiff::ZonedDateTime + Send + Sync + 'static) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_debug(false);
    environment.set_fuel(Some(TEMPLATE_FUEL));
    environment.set_recursion_limit(TEMPLATE_RECURSION);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(python::print);
    environment.add_filter("tojson", json::tojson);
    environment.add_function("raise_exception", raise_exception);
    let clock = Arc::new(clock);
    environment.add_function("strftime_now", move |format: &str| strftime(format, &clock()));
    Ok(environment)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn strftime(format: &str, time: &jiff::ZonedDateTime) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, time)
        .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}")))
}

/// The innermost message, with the line where the template failed.
fn template_error(error: &Error) -> EngineError {
    let mut line = error.line();
    let mut message = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(raised) = inner.downcast_ref::<Raised>() {
            message.clone_from(&raised.0);
        } else if let Some(inner) = inner.downcast_ref::<Error>() {
            line = inner.line().or(line);
            message = format!("{message}: {inner}");
        } else {
            message = format!("{message}: {inner}");
        }
        source = inner.source();
    }
    EngineError::ChatTemplate { line, message }
}

#[cfg(test)]
mod tests;
