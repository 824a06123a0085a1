//! `stagecoach generate`

mod prompts;

use std::io::{BufRead, Error, ErrorKind, IsTerminal};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use jiff::Zoned;
use jiff::civil::Date;
use serde_json::{Value, json};
use stagecoach_engine::generate::{ChatPrompts, GenerationConfig, Sampling, TextGenerator};

use super::job_args::parse_not_negative;
use super::output::{print_error, write_part};
use prompts::{Prompt, read_prompts};

/// Continue prompts with a trained model, or talk to it.
#[derive(Debug, Args)]
pub(super) struct GenerateCommand {
    /// A Hugging Face model directory, a checkpoint's folder, or a job's folder (its newest checkpoint).
    model: PathBuf,
    /// The model directory with the frozen weights, for a checkpoint that has only trained weights, such as adapters;
    /// by default the directory that the job names, in a folder above the checkpoint.
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,
    /// The text to continue. With --chat, the user's message.
    #[arg(long, conflicts_with = "prompts")]
    prompt: Option<String>,
    /// A JSON Lines file with a prompt in each line, such as {"prompt": "To be"}. Prints a line for each prompt, with
    /// its "completion" and "finishReason". `-` reads the standard input to its end. With --chat, a line may be
    /// {"messages": [...]}.
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Format prompts with the model's chat template, and print the assistant's messages. Without a prompt, each line
    /// of the standard input is a message of the user in one conversation.
    #[arg(long, conflicts_with = "parse_special_tokens")]
    chat: bool,
    /// The system's message, with which each conversation begins.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// The date that a chat template writes, such as 2026-01-31. By default today.
    #[arg(long, value_name = "DATE", requires = "chat")]
    date: Option<Date>,
    /// The maximum number of tokens to generate for a prompt.
    #[arg(long, default_value_t = GenerationConfig::default().max_new_tokens)]
    max_tokens: usize,
    /// Divides the logits; 0 always takes the most likely token.
    #[arg(long, allow_negative_numbers = true, default_value_t = Sampling::default().temperature, value_parser = parse_not_negative)]
    temperature: f64,
    /// Sample from this many of the most likely tokens.
    #[arg(long, default_value_t = Sampling::default().top_k, value_parser = parse_top_k)]
    top_k: usize,
    /// Sample from the smallest set of the most likely tokens whose probabilities add up to at least this number.
    #[arg(long, default_value_t = Sampling::default().top_p, value_parser = parse_top_p)]
    top_p: f64,
    /// A text at which a continuation ends; the continuation does not contain it. May be given more than once.
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    stop: Vec<String>,
    /// The seed of the random number generator, which restarts with it for each prompt.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Read text of the prompt that spells a special token, such as `<|im_start|>`, as that token.
    #[arg(long)]
    parse_special_tokens: bool,
}

impl GenerateCommand {
    pub(super) fn main(self) -> anyhow::Result<()> {
        match self.generate() {
            // a reader such as `head` closes the pipe after it has read enough
            Err(error) if error.downcast_ref().is_some_and(|error: &Error| error.kind() == ErrorKind::BrokenPipe) => {
                Ok(())
            }
            result => result,
        }
    }

    fn generate(self) -> anyhow::Result<()> {
        // the file is read before the model is loaded, so that a file that can't be read fails early
        let prompts = self.prompts.as_deref().map(|path| read_prompts(path, self.chat)).transpose()?;
        let generator = TextGenerator::load(&self.model, self.base.as_deref(), self.parse_special_tokens)?;
        let chat = match self.chat {
            true => Some(Conversations {
                prompts: generator.chat_prompts(self.date.unwrap_or_else(|| Zoned::now().date()))?,
                system: self.system.as_ref().map(|text| json!({"role": "system", "content": text})),
            }),
            false => None,
        };
        let sampling = Sampling { temperature: self.temperature, top_k: self.top_k, top_p: self.top_p };
        let config = GenerationConfig { max_new_tokens: self.max_tokens, sampling, stop: self.stop, seed: self.seed };
        let session = GenerationSession { generator, chat, config };
        match (prompts, self.prompt, &session.chat) {
            (Some(prompts), ..) => {
                let completed = |(number, prompt)| {
                    session.print_completion(prompt).with_context(|| format!("prompt {number} has no completion"))
                };
                (1..).zip(prompts).try_for_each(completed)
            }
            (None, Some(prompt), Some(chat)) => session.reply(chat, &chat.messages(Prompt::Text(prompt))).map(drop),
            (None, None, Some(chat)) => session.talk(chat),
            (None, prompt, None) => session.continue_prompt(&prompt.unwrap_or_default()),
        }
    }
}

/// A loaded model with the settings of the command.
struct GenerationSession {
    generator: TextGenerator,
    /// The settings of --chat; `None` without --chat.
    chat: Option<Conversations>,
    config: GenerationConfig,
}

struct Conversations {
    prompts: ChatPrompts,
    /// The message with which each conversation begins.
    system: Option<Value>,
}

impl Conversations {
    /// Returns the messages of a new conversation: the system's message, if there is one, and the messages of `prompt`.
    fn messages(&self, prompt: Prompt) -> Vec<Value> {
        let messages = match prompt {
            Prompt::Text(text) => vec![user_message(&text)],
            Prompt::Messages(messages) => messages,
        };
        self.system.iter().cloned().chain(messages).collect()
    }
}

impl GenerationSession {
    /// Prints the prompt, and its continuation while the model generates it.
    fn continue_prompt(&self, prompt: &str) -> anyhow::Result<()> {
        let spelled: Vec<String> = self.generator.spelled(prompt).into_iter().collect();
        if !spelled.is_empty() {
            print_error(format!(
                "note: the prompt spells {}, which the model reads as characters; --parse-special-tokens makes tokens of them",
                spelled.join(", ")
            ));
        }
        let ids = self.generator.prompt_ids(prompt)?;
        let (tokens, most) = (ids.len(), self.generator.context_length());
        if tokens > most {
            print_error(format!("note: the prompt has {tokens} tokens, and the model reads the last {most} of them"));
        }
        write(&self.generator.decode(&ids)?)?;
        self.generator.continue_from(&ids, &self.config, &mut write)?;
        write("\n")
    }

    /// Prints the assistant's next message while the model generates it. Returns the message.
    fn reply(&self, chat: &Conversations, messages: &[Value]) -> anyhow::Result<Value> {
        let ids = self.generator.conversation_ids(&chat.prompts, &json!({"messages": messages}))?;
        let continuation = self.generator.continue_from(&ids, &self.config, &mut write)?;
        write("\n")?;
        Ok(json!({"role": "assistant", "content": continuation.text}))
    }

    /// Runs a conversation in which each line of the standard input is a message of the user.
    fn talk(&self, chat: &Conversations) -> anyhow::Result<()> {
        let prompt_sign = || if std::io::stdin().is_terminal() { write("> ") } else { Ok(()) };
        let mut messages: Vec<Value> = chat.system.iter().cloned().collect();
        prompt_sign()?;
        for line in std::io::stdin().lock().lines() {
            let line = line.context("can't read the standard input")?;
            if !line.trim().is_empty() {
                messages.push(user_message(&line));
                messages.push(self.reply(chat, &messages)?);
            }
            prompt_sign()?;
        }
        Ok(())
    }

    /// Prints the completion of a prompt as a line of JSON.
    fn print_completion(&self, prompt: Prompt) -> anyhow::Result<()> {
        let (mut record, ids) = match (&self.chat, prompt) {
            (Some(chat), prompt) => {
                let record = json!({"messages": chat.messages(prompt)});
                let ids = self.generator.conversation_ids(&chat.prompts, &record)?;
                (record, ids)
            }
            (None, Prompt::Text(text)) => (json!({"prompt": text}), self.generator.prompt_ids(&text)?),
            (None, Prompt::Messages(_)) => anyhow::bail!("messages need --chat"),
        };
        let continuation = self.generator.continue_from(&ids, &self.config, &mut |_| Ok(()))?;
        record["completion"] = continuation.text.into();
        record["finishReason"] = continuation.finish_reason.as_str().into();
        write(&format!("{record}\n"))
    }
}

fn write(text: &str) -> anyhow::Result<()> {
    write_part(text).context("can't write to the standard output")
}

fn user_message(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

fn parse_top_k(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(top_k) if top_k > 0 => Ok(top_k),
        _ => Err("expected a whole number, 1 or more".to_owned()),
    }
}

fn parse_top_p(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(top_p) if top_p > 0.0 && top_p <= 1.0 => Ok(top_p),
        _ => Err("expected a number above 0, 1 at most".to_owned()),
    }
}
