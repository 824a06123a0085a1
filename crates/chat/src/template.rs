//! Compiles and renders a chat template as transformers does.

use std::collections::BTreeMap;

use jiff::civil::Date;
use jiff::fmt::strtime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value as EngineValue};
use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Map, Value};

use crate::error::{ConversationError, SetupError};
use crate::{generation, marks, python, repr};

const NAME: &str = "chat template";
/// The largest number of steps of the template engine for one rendering. The limit stops a template that never ends.
const FUEL: u64 = 100_000_000;

/// The values that a template needs in addition to a conversation.
#[derive(Clone, Debug, Default)]
pub struct TemplateSettings {
    /// The date that `strftime_now` formats. The formatted time is midnight. If `None`, a call of `strftime_now` is an
    /// error.
    pub date: Option<Date>,
    /// The texts of special tokens, by the names of their variables, such as `bos_token`.
    pub special_tokens: BTreeMap<String, String>,
    /// Further variables, such as `enable_thinking`.
    pub variables: Map<String, Value>,
}

/// A compiled chat template with its settings.
#[derive(Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    variables: BTreeMap<String, EngineValue>,
    has_generation: bool,
}

/// A conversation as values of the template engine. All renderings of the conversation share these values.
pub(crate) struct RenderContext {
    messages: Vec<EngineValue>,
    tools: EngineValue,
    documents: EngineValue,
}

impl RenderContext {
    pub(crate) fn new(messages: &[Value], tools: &Value, documents: &Value) -> RenderContext {
        let value = |value: &Value| EngineValue::from(Serde(value));
        RenderContext {
            messages: messages.iter().map(value).collect(),
            tools: value(tools),
            documents: value(documents),
        }
    }

    /// Returns the number of messages.
    pub(crate) fn count(&self) -> usize {
        self.messages.len()
    }
}

/// The error of `strftime_now` if the settings have no date.
#[derive(Debug, thiserror::Error)]
#[error("no date")]
struct NoDate;

impl ChatTemplate {
    /// Compiles the template `source`.
    ///
    /// # Errors
    /// Fails if `source` is not valid Jinja, or if `source` or a setting contains one of the private-use characters
    /// that mark text during rendering.
    pub fn new(source: &str, settings: TemplateSettings) -> Result<ChatTemplate, SetupError> {
        let mut variables: Map<String, Value> =
            settings.special_tokens.into_iter().map(|(name, text)| (name, Value::String(text))).collect();
        variables.extend(settings.variables);
        marks::check("the chat template", marks::find(source))?;
        for (name, value) in &variables {
            marks::check(&format!("the template's variable {name}"), marks::find(name).or(marks::find_in(value)))?;
        }
        let (source, has_generation) = generation::rewrite(source);
        let environment = environment(source, settings.date)
            .map_err(|error| SetupError::Template { problem: description(&error) })?;
        let variables = variables.into_iter().map(|(name, value)| (name, EngineValue::from(Serde(value)))).collect();
        Ok(ChatTemplate { environment, variables, has_generation })
    }

    /// Whether the template has `{% generation %}` blocks, which mark the text that an assistant writes.
    pub(crate) fn has_generation(&self) -> bool {
        self.has_generation
    }

    /// Renders the first `count` messages. The result has marks around the texts that generation blocks write.
    ///
    /// # Errors
    /// Fails if the template refuses the conversation, or needs a date that the settings lack.
    pub(crate) fn render(
        &self,
        variables: &RenderContext,
        count: usize,
        add_generation_prompt: bool,
    ) -> Result<String, ConversationError> {
        let RenderContext { messages, tools, documents } = variables;
        let messages = messages.get(..count).unwrap_or(messages).to_vec();
        let mut all = self.variables.clone();
        all.insert("messages".into(), messages.into());
        all.insert("tools".into(), tools.clone());
        all.insert("documents".into(), documents.clone());
        all.insert("add_generation_prompt".into(), add_generation_prompt.into());
        let template = self.environment.get_template(NAME);
        template.and_then(|template| template.render(EngineValue::from(all))).map_err(|error| refusal(&error))
    }
}

fn environment(source: String, date: Option<Date>) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_fuel(Some(FUEL));
    python::extend(&mut environment);
    repr::extend(&mut environment);
    generation::extend(&mut environment);
    environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", move |format: &str| formatted(date, format));
    environment.add_template_owned(NAME, source)?;
    Ok(environment)
}

fn formatted(date: Option<Date>, format: &str) -> Result<String, Error> {
    let date = date.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "no date").with_source(NoDate))?;
    let problem = |error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}): {error}"));
    strtime::format(format, date.at(0, 0, 0, 0)).map_err(problem)
}

fn refusal(error: &Error) -> ConversationError {
    if sources(error).any(|source| source.is::<NoDate>()) {
        return ConversationError::NoDate;
    }
    ConversationError::Template { problem: description(error) }
}

/// Returns the message of the innermost error, with the line of the template.
fn description(error: &Error) -> String {
    let innermost = sources(error).filter_map(|source| source.downcast_ref::<Error>()).last().unwrap_or(error);
    let line = innermost.line().map_or_else(String::new, |line| format!(" (line {line})"));
    match (innermost.kind(), innermost.detail()) {
        (ErrorKind::InvalidOperation, Some(detail)) => format!("{detail}{line}"),
        (kind, Some(detail)) => format!("{kind}: {detail}{line}"),
        (kind, None) => format!("{kind}{line}"),
    }
}

fn sources(error: &Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    let first: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(first), |&error| error.source())
}
