//! Reads records of data sets as conversations.

use serde_json::{Map, Value};

use crate::error::{ConversationError, MessageRef};
use crate::marks;

/// The names of fields that contain the reasoning of a message. transformers fills the first field from the second or
/// the third.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

pub(crate) const ASSISTANT: &str = "assistant";

/// The roles that templates of published models support, in alphabetical order.
pub const KNOWN_ROLES: [&str; 8] =
    [ASSISTANT, "developer", "environment", "function", "ipython", "system", "tool", "user"];

/// The largest number of fields of a record that an error names.
const MAX_NAMED: usize = 8;

/// A conversation, or a prompt with its completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation(pub(crate) ConversationForm);

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ConversationForm {
    /// A prompt and a completion as texts. The completion is trained on. No template renders the texts.
    Texts {
        prompt: String,
        completion: String,
    },
    Messages(Messages),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Messages {
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Value,
    pub(crate) documents: Value,
    /// The index of the first message that is trained on.
    pub(crate) trained_from: usize,
}

impl Conversation {
    /// Whether this is a prompt with its completion, both as texts. No template renders such a conversation.
    pub fn is_of_texts(&self) -> bool {
        matches!(self.0, ConversationForm::Texts { .. })
    }

    /// Whether the assistant writes one of the messages that may be trained on.
    pub fn has_assistant(&self) -> bool {
        match &self.0 {
            ConversationForm::Texts { .. } => false,
            ConversationForm::Messages(messages) => messages.of_assistant().any(|index| index >= messages.trained_from),
        }
    }

    /// Returns the messages' roles that are not in [`KNOWN_ROLES`], such as a misspelt `asistant`.
    pub fn unknown_roles(&self) -> impl Iterator<Item = &str> {
        let messages = match &self.0 {
            ConversationForm::Texts { .. } => [].as_slice(),
            ConversationForm::Messages(conversation) => &conversation.messages,
        };
        let roles = messages.iter().filter_map(|message| message["role"].as_str());
        roles.filter(|role| !KNOWN_ROLES.contains(role))
    }

    /// Reads a record `{messages: [{role, content, ...}], tools?, documents?}`.
    ///
    /// # Errors
    /// The error names the message or field that is not valid in a conversation.
    pub fn chat(record: &Value) -> Result<Conversation, ConversationError> {
        let messages = list(record, "messages")?;
        Ok(Conversation(ConversationForm::Messages(Messages::new(record, messages, 0)?)))
    }

    /// Reads a record `{prompt, completion}`. Both fields are texts, or both are lists of messages.
    ///
    /// # Errors
    /// The error names the message or field that is not valid in a prompt with its completion.
    pub fn prompt_completion(record: &Value) -> Result<Conversation, ConversationError> {
        if let (Some(prompt), Some(completion)) = (record["prompt"].as_str(), record["completion"].as_str()) {
            for (place, text) in [("prompt", prompt), ("completion", completion)] {
                marks::check(place, marks::find(text))?;
            }
            return Ok(Conversation(ConversationForm::Texts { prompt: prompt.into(), completion: completion.into() }));
        }
        for (field, other) in [("prompt", "completion"), ("completion", "prompt")] {
            if record[field].is_string() && record[other].is_array() {
                return Err(malformed(
                    field,
                    format!("is a text and {other} is a list: write both as texts, or both as lists of messages"),
                ));
            }
        }
        let prompt = list(record, "prompt")?;
        let messages = [prompt, list(record, "completion")?].concat();
        Ok(Conversation(ConversationForm::Messages(Messages::new(record, &messages, prompt.len())?)))
    }
}

impl Messages {
    fn new(record: &Value, messages: &[Value], trained_from: usize) -> Result<Messages, ConversationError> {
        let messages = messages.iter().enumerate().map(|(index, message)| checked(index, message));
        let messages = messages.collect::<Result<Vec<Value>, ConversationError>>()?;
        let [tools, documents] = ["tools", "documents"].map(|field| objects(record, field));
        Ok(Messages { messages, tools: tools?, documents: documents?, trained_from })
    }

    pub(crate) fn turn(&self, index: usize) -> MessageRef {
        MessageRef { number: index + 1, role: self.role(index).to_owned() }
    }

    pub(crate) fn role(&self, index: usize) -> &str {
        self.messages.get(index).and_then(|message| message["role"].as_str()).unwrap_or_default()
    }

    /// Returns the indices of the assistant's messages.
    pub(crate) fn of_assistant(&self) -> impl Iterator<Item = usize> {
        (0..self.messages.len()).filter(|&index| self.role(index) == ASSISTANT)
    }
}

fn malformed(place: impl Into<String>, problem: impl Into<String>) -> ConversationError {
    ConversationError::Malformed { place: place.into(), problem: problem.into() }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn list<'a>(record: &'a Value, field: &str) -> Result<&'a [Value], ConversationError> {
    let expected = "expected a list of messages with role and content";
    match record.get(field) {
        Some(Value::Array(list)) if list.is_empty() => Err(malformed(field, format!("is an empty list: {expected}"))),
        Some(Value::Array(list)) => Ok(list),
        Some(other) => Err(malformed(field, format!("is {}: {expected}", kind(other)))),
        None => Err(malformed("the record", format!("has no field {field}{}: {expected}", others(record)))),
    }
}

/// Lists the fields of a record that lacks the expected field, for an error.
fn others(record: &Value) -> String {
    match record.as_object().map(|fields| fields.keys().map(String::as_str).take(MAX_NAMED).collect::<Vec<_>>()) {
        None => format!(" (it is {})", kind(record)),
        Some(names) if names.is_empty() => String::new(),
        Some(names) => format!(", only {}", names.join(", ")),
    }
}

/// Reads an optional list of objects. Returns null if the field is absent or null.
fn objects(record: &Value, field: &str) -> Result<Value, ConversationError> {
    let value = record.get(field).unwrap_or(&Value::Null);
    marks::check(field, marks::find_in(value))?;
    let other = match value {
        Value::Null => return Ok(Value::Null),
        Value::Array(list) => match list.iter().find(|item| !item.is_object()) {
            Some(other) => format!("has {} in its list", kind(other)),
            None => return Ok(value.clone()),
        },
        other => format!("is {}", kind(other)),
    };
    Err(malformed(field, format!("{other}: expected a list of objects, or none")))
}

/// Checks a message, and returns it in the form that transformers passes to a template.
fn checked(index: usize, message: &Value) -> Result<Value, ConversationError> {
    let place = format!("message {}", index + 1);
    let Value::Object(fields) = message else {
        return Err(malformed(place, format!("is {}: expected an object with role and content", kind(message))));
    };
    let role = check_role(&place, fields.get("role"))?;
    let place = format!("{place} ({role})");
    marks::check(&place, marks::find_in(message))?;
    check_content(&place, fields)?;
    Ok(Value::Object(with_reasoning(&without_nulls(fields))))
}

fn check_role<'a>(place: &str, role: Option<&'a Value>) -> Result<&'a str, ConversationError> {
    let expected = "expected a role such as user or assistant";
    let is_plain = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-' | ' ');
    match role {
        Some(Value::String(role)) if role.is_empty() => Err(malformed(place, format!("has an empty role: {expected}"))),
        Some(Value::String(role)) if role.chars().all(is_plain) => Ok(role),
        Some(Value::String(role)) => {
            let allowed = "of letters, digits, _, - and spaces";
            Err(malformed(place, format!("has the role {role:?}: {expected}, {allowed}")))
        }
        Some(other) => Err(malformed(place, format!("has a role that is {}: {expected}", kind(other)))),
        None => Err(malformed(place, format!("has no role: {expected}"))),
    }
}

fn check_content(place: &str, fields: &Map<String, Value>) -> Result<(), ConversationError> {
    let calls = fields.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
    let expected = "expected a text, or a list of parts of type text";
    match fields.get("content") {
        Some(Value::String(_)) => Ok(()),
        Some(Value::Array(parts)) => parts
            .iter()
            .enumerate()
            .try_for_each(|(index, part)| check_part(&format!("{place}, part {}", index + 1), part)),
        Some(Value::Null) | None if calls => Ok(()),
        Some(other) => Err(malformed(place, format!("has a content that is {}: {expected}", kind(other)))),
        None => Err(malformed(place, format!("has no content: {expected}"))),
    }
}

fn check_part(place: &str, part: &Value) -> Result<(), ConversationError> {
    let expected = "expected {\"type\": \"text\", \"text\": ...}";
    match (part["type"].as_str(), &part["text"]) {
        (Some("text"), Value::String(_)) => Ok(()),
        (Some("text"), other) => Err(malformed(place, format!("has a text that is {}: {expected}", kind(other)))),
        (Some(other), _) => {
            Err(malformed(place, format!("is of type {other:?}, and only text can be trained on: {expected}")))
        }
        (None, _) => Err(malformed(place, format!("has no type: {expected}"))),
    }
}

/// Returns the fields whose value is not null. A row of a table has null in each column that the message lacks.
/// Templates would treat this null as a value, because they test only whether the field exists, or write the field
/// without a test.
fn without_nulls(fields: &Map<String, Value>) -> Map<String, Value> {
    fields.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Returns the fields with the reasoning under both names that templates read: `thinking` and `reasoning_content`.
fn with_reasoning(fields: &Map<String, Value>) -> Map<String, Value> {
    let Some(reasoning) = REASONING.iter().find_map(|name| fields.get(*name)) else {
        return fields.clone();
    };
    let mut filled = Map::new();
    filled.insert("thinking".into(), reasoning.clone());
    filled.extend(fields.clone());
    filled.insert("reasoning_content".into(), reasoning.clone());
    filled
}
