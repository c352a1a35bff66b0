//! What a run answers, and how it is printed: one JSON document, or the same as text.

use std::ffi::OsString;
use std::io::{self, Write};

use serde_json::{Value, json};

use crate::exit::{Exit, Usage, classify};

/// The one answer of a run.
#[derive(Debug)]
pub(super) struct Answer {
    exit: Exit,
    body: Option<Body>,
}

#[derive(Debug)]
struct Body {
    document: Value,
    text: String,
}

impl Answer {
    /// `document` with `--json`, `text` without.
    pub(super) fn new(exit: Exit, document: Value, text: impl Into<String>) -> Self {
        Self {
            exit,
            body: Some(Body {
                document,
                text: text.into(),
            }),
        }
    }

    /// An answer that its verb has printed.
    pub(super) const fn printed(exit: Exit) -> Self {
        Self { exit, body: None }
    }

    /// Adds a key to the document, and a line to the text.
    pub(super) fn add(&mut self, key: &str, value: Value, line: &str) {
        if let Some(body) = &mut self.body {
            if let Value::Object(document) = &mut body.document {
                document.insert(key.to_owned(), value);
            }
            body.text.push('\n');
            body.text.push_str(line);
        }
    }

    /// A text that has no other form.
    pub(super) fn text_only(key: &str, text: &str) -> Self {
        Self::new(Exit::Done, json!({ key: text.trim_end() }), text.trim_end())
    }

    /// The same answer with more keys, and a line above its text.
    pub(super) fn with(mut self, facts: &[(&str, Value)], line: &str) -> Self {
        if let Some(body) = &mut self.body {
            for (key, value) in facts {
                body.document[*key] = value.clone();
            }
            body.text = format!("{line}\n{}", body.text);
        }
        self
    }

    /// Prints the answer and gives the exit code: of two troubles, what the run came to outweighs that nobody could be told.
    pub(super) fn print(&self, json: bool) -> Exit {
        let is_told = match &self.body {
            Some(body) if json => print(&body.document.to_string()),
            Some(body) => print(&body.text),
            None => true,
        };
        match self.exit {
            Exit::Done if !is_told => Exit::Failed,
            exit => exit,
        }
    }

    #[cfg(test)]
    pub(super) fn parts(&self) -> (Exit, &Value, &str) {
        let body = self.body.as_ref().expect("it was not printed by its verb");
        (self.exit, &body.document, &body.text)
    }

    /// Prints the document.
    pub(super) fn print_document(&self) {
        self.print(true);
    }
}

/// An error as an answer: `error`, and `code` where it has a stable name.
pub(super) fn error_document(text: &str, code: Option<&'static str>) -> Answer {
    let mut document = json!({ "error": text });
    if let Some(code) = code {
        document["code"] = code.into();
    }
    Answer::new(Exit::Failed, document, "")
}

/// What is wrong with the arguments, without the hints that follow it.
pub(super) fn usage_document(rendered: &str) -> Answer {
    let hints = ["\n\nUsage:", "\n\nFor more information"];
    let end = hints
        .iter()
        .filter_map(|hint| rendered.find(hint))
        .min()
        .unwrap_or(rendered.len());
    let text = rendered[..end].trim().trim_start_matches("error: ");
    error_document(text, Some("usage"))
}

/// Prints an error: to stderr, and as the one document of stdout with `--json`. Gives the exit code.
pub(super) fn print_error(error: &anyhow::Error, json: bool) -> Exit {
    let (exit, code) = classify(error);
    let text = format!("{error:#}");
    complain(&text);
    if json {
        error_document(&text, code).print_document();
    }
    exit
}

/// Says something went wrong, or nearly so, on stderr.
pub(super) fn complain(text: &str) {
    // Nobody is left to tell if stderr is closed.
    let _ = writeln!(io::stderr().lock(), "recoup: {text}");
}

/// An error of wrong usage.
pub(super) fn usage(text: impl Into<String>) -> anyhow::Error {
    Usage(text.into()).into()
}

/// Whether JSON was asked for: needed before the arguments are known to be right.
pub(super) fn wants_json(args: &[OsString]) -> bool {
    let is_set = |value: OsString| {
        !matches!(
            value.to_str(),
            Some("" | "0" | "false" | "no" | "off" | "n" | "f")
        )
    };
    args.iter()
        .take_while(|arg| *arg != "--")
        .any(|arg| arg == "--json")
        || std::env::var_os("RECOUP_JSON").is_some_and(is_set)
}

/// Prints to stdout. Gives false, and says so on stderr, if it could not be written.
fn print(text: &str) -> bool {
    if text.is_empty() {
        return true;
    }
    let mut stdout = io::stdout().lock();
    let printed = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
    match printed {
        // A reader that has seen enough, such as `head`, is no fault of ours; the exit code still says what happened.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            complain(&format!("the answer could not be printed: {error}"));
            false
        }
        _ => true,
    }
}
