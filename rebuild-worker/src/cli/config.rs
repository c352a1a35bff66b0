//! The configuration file: policies by kind.
//!
//! ```toml
//! [kind."video.render"]
//! policy = "claimed"        # or "external", the default
//! cap = 5
//! first_delay = "5s"
//! max_delay = "10min"
//! window = "24h"
//! start_within = "24h"
//! lease = "60s"
//! ```
//!
//! Read strictly: an unknown key, a number outside its range or a duration without its unit stops the run, and the error names the
//! file, the line and the key. What is left out has the default of the kind's mode.

use std::fs;
use std::path::Path;

use anyhow::Context;
use recoup::retry::Mode;
use recoup::{Kind, Policies, Policy};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::answer::usage;

const KEYS: &str = "policy, cap, first_delay, max_delay, window, start_within, lease";

type Checked<T> = Result<T, Fault>;

/// Something wrong at a byte of the file.
struct Fault {
    at: usize,
    why: String,
}

fn fault(span: std::ops::Range<usize>, why: impl Into<String>) -> Fault {
    Fault {
        at: span.start,
        why: why.into(),
    }
}

/// Reads the policies of `file`.
pub(super) fn read(file: &Path) -> anyhow::Result<Policies> {
    let name = file.display();
    let text =
        fs::read_to_string(file).with_context(|| format!("configuration {name} cannot be read"))?;
    parse(&text).map_err(|Fault { at, why }| {
        usage(format!(
            "configuration {name}, line {}: {why}",
            line_at(&text, at)
        ))
    })
}

fn line_at(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

fn parse(text: &str) -> Checked<Policies> {
    let document = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(text.len(), |span| span.start);
        Fault {
            at,
            why: error.message().replace('\n', "; "),
        }
    })?;
    let mut policies = Policies::default();
    for (key, value) in document.get_ref() {
        if key.get_ref() != "kind" {
            return Err(fault(
                key.span(),
                format!("{}: unknown key, expected kind", key.get_ref()),
            ));
        }
        for (name, table) in table_of("kind", value)? {
            let path = format!("kind.{:?}", name.get_ref());
            let kind = Kind::new(name.get_ref())
                .map_err(|error| fault(name.span(), format!("{path}: {error}")))?;
            policies = policies.with(kind, policy_of(&path, table_of(&path, table)?)?);
        }
    }
    Ok(policies)
}

fn table_of<'a, 'i>(path: &str, value: &'a Spanned<DeValue<'i>>) -> Checked<&'a DeTable<'i>> {
    let found = value.get_ref();
    found.as_table().ok_or_else(|| {
        fault(
            value.span(),
            format!(
                "{path} is a table, such as [kind.\"video.render\"], not {}",
                a(found)
            ),
        )
    })
}

fn a(value: &DeValue<'_>) -> String {
    match value.type_str() {
        name @ ("integer" | "array") => format!("an {name}"),
        name => format!("a {name}"),
    }
}

fn policy_of(path: &str, table: &DeTable<'_>) -> Checked<Policy> {
    let mode = match table.get("policy") {
        None => Mode::External,
        Some(value) => match value.get_ref().as_str() {
            Some("external") => Mode::External,
            Some("claimed") => Mode::Claimed,
            _ => {
                return Err(fault(
                    value.span(),
                    format!("{path}.policy is \"external\" or \"claimed\""),
                ));
            }
        },
    };
    let mut policy = Policy::default_for(mode);
    for (key, value) in table {
        let (span, value) = (value.span(), value.get_ref());
        let wrong = |why: String| fault(span.clone(), format!("{path}.{}: {why}", key.get_ref()));
        match &**key.get_ref() {
            "policy" => continue,
            "cap" => policy.cap = whole_number(value).map_err(&wrong)?,
            "first_delay" => policy.first_delay_ms = duration_ms(value).map_err(&wrong)?,
            "max_delay" => policy.max_delay_ms = duration_ms(value).map_err(&wrong)?,
            "window" => policy.window_ms = duration_ms(value).map_err(&wrong)?,
            "start_within" => policy.start_within_ms = duration_ms(value).map_err(&wrong)?,
            "lease" => policy.lease_ms = duration_ms(value).map_err(&wrong)?,
            other => {
                return Err(fault(
                    key.span(),
                    format!("{path}.{other}: unknown key, expected one of {KEYS}"),
                ));
            }
        }
        // Checked after each key, so that the one that is out of range is the one that is named.
        policy.check().map_err(|error| wrong(error.to_string()))?;
    }
    Ok(policy)
}

fn whole_number(value: &DeValue<'_>) -> Result<u32, String> {
    let number = value
        .as_integer()
        .ok_or_else(|| format!("a whole number is needed, not {}", a(value)))?;
    u32::from_str_radix(number.as_str(), number.radix())
        .map_err(|_| format!("{number} is not a number of starts"))
}

/// A whole number and its unit: `500ms`, `5s`, `10min`, `24h`, `2d`.
fn duration_ms(value: &DeValue<'_>) -> Result<u64, String> {
    let text = value
        .as_str()
        .ok_or_else(|| format!("{DURATION} is needed, not {}", a(value)))?;
    parse_duration_ms(text)
}

/// How a duration is written, for who wrote it otherwise.
const DURATION: &str =
    "a duration with its unit, such as \"500ms\", \"5s\", \"10min\", \"24h\" or \"2d\"";

/// A duration as configuration and arguments write it, in milliseconds.
pub(super) fn parse_duration_ms(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 5] = [
        ("ms", 1),
        ("s", 1_000),
        ("min", 60_000),
        ("h", 3_600_000),
        ("d", 86_400_000),
    ];
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = UNITS.iter().find(|(name, _)| *name == unit.trim_start());
    let number: Option<u64> = number.parse().ok();
    let (number, (_, unit_ms)) = number
        .zip(unit)
        .ok_or_else(|| format!("{text:?} is not {DURATION}"))?;
    number
        .checked_mul(*unit_ms)
        .ok_or_else(|| format!("{text:?} is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        let Err(Fault { at, why }) = parse(text) else {
            panic!("{text:?} is refused")
        };
        format!("{}: {why}", line_at(text, at))
    }

    #[test]
    fn a_policy_is_read_with_its_units() {
        let text = "[kind.\"video.render\"]\npolicy = \"claimed\"\ncap = 0x3\nfirst_delay = \"500ms\"\n\
            max_delay = \"10min\"\nwindow = \"2d\"\nstart_within = \"24h\"\nlease = \"60 s\"\n[kind.chat]\n";
        let Ok(policies) = parse(text) else {
            panic!("it is valid")
        };
        let kind = |name| Kind::new(name).expect("valid");
        let policy = policies.resolve(&kind("video.render"), None);
        let expected = Policy {
            mode: Mode::Claimed,
            cap: 3,
            first_delay_ms: 500,
            max_delay_ms: 600_000,
            window_ms: 172_800_000,
            start_within_ms: 86_400_000,
            lease_ms: 60_000,
        };
        assert_eq!(policy, expected);
        assert_eq!(
            policies.resolve(&kind("chat"), None),
            Policy::default_for(Mode::External)
        );
    }

    #[test]
    fn a_fault_is_named_by_line_and_key() {
        let head = "# policies\n[kind.\"a.b\"]\n";
        let cases = [
            (
                "lease = 60",
                "3: kind.\"a.b\".lease: a duration with its unit",
            ),
            (
                "lease = \"60\"",
                "3: kind.\"a.b\".lease: \"60\" is not a duration",
            ),
            (
                "lease = \"-1s\"",
                "3: kind.\"a.b\".lease: \"-1s\" is not a duration",
            ),
            (
                "lease = \"0s\"",
                "3: kind.\"a.b\".lease: policy: lease_ms 0 is not between",
            ),
            (
                "lease = \"400d\"",
                "3: kind.\"a.b\".lease: policy: lease_ms",
            ),
            ("lease = \"99999999999999999999s\"", "is not a duration"),
            ("lease = \"9999999999999999d\"", "is too long"),
            (
                "cap = 0",
                "3: kind.\"a.b\".cap: policy: cap 0 is not between 1 and 100",
            ),
            (
                "cap = -1",
                "3: kind.\"a.b\".cap: -1 is not a number of starts",
            ),
            (
                "cap = \"5\"",
                "3: kind.\"a.b\".cap: a whole number is needed, not a string",
            ),
            (
                "policy = \"both\"",
                "3: kind.\"a.b\".policy is \"external\" or",
            ),
            ("leese = \"60s\"", "3: kind.\"a.b\".leese: unknown key"),
            ("cap = 1\ncap = 2", "4: duplicate key"),
            ("cap =", "3: "),
        ];
        for (line, expected) in cases {
            let error = error(&format!("{head}{line}\n"));
            assert!(error.contains(expected), "{line}: {error}");
        }
        assert!(error("kinds = 1").contains("kinds: unknown key, expected kind"));
        assert!(error("kind = 1").contains("kind is a table"));
        assert!(error("[kind]\na = 1").contains("kind.\"a\" is a table"));
        assert!(error("[kind.\"\"]").contains("kind is empty"));
    }
}
