//! The demo's input: requests with their token counts, read from a trace or generated.
//!
//! A trace is a CSV file of the columns `TIMESTAMP,ContextTokens,GeneratedTokens`, one request a line, timestamps in UTC with 0 to 9
//! fractional digits. It is read strictly: the first line that is something else stops the demo, by its number. Line ends may be
//! CRLF, the last may be missing, rows may be out of order (they are sorted, equal instants stay in the file's order).
//!
//! The generated trace has the distribution of the published one: quantile tables measured from that file, sampled by inverse
//! interpolation. Context and generated tokens are drawn independently, which is what the file shows (correlation 0.001), and so are
//! the times between arrivals (correlation with the next one −0.003): the bursts come from the table's heavy tail alone.
//!
//! Bounds: a token count is at most [`MAX_TOKENS`]; the file is held in memory, about 24 bytes a row beside its text.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use chrono::NaiveDate;
use sha2::{Digest, Sha256};

use super::random::{SplitMix64, WHOLE};

/// The one line that a trace begins with.
const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

/// The most tokens of one kind that a request may have: far above any model's window, far below what a price can hold.
pub(super) const MAX_TOKENS: u64 = 1_000_000_000;

/// How many requests are generated: as many as the published trace has.
pub(super) const GENERATED_ROWS: usize = 8_819;

/// Where the distribution, and the form of the file, come from: name, licence, paper.
pub(super) const CITATION: &str =
    "Azure LLM inference trace 2023, CC-BY 4.0; Patel et al., \"Splitwise\", ISCA 2024";

/// The SHA-256 of that file: `AzureLLMInferenceTrace_code.csv`.
const CITED_SHA256: [u8; 32] = [
    0x54, 0xe9, 0xa6, 0xd2, 0xa4, 0xbd, 0x06, 0xba, 0x1e, 0x06, 0x03, 0x04, 0xb9, 0x00, 0xab, 0xbc,
    0x74, 0xcb, 0xea, 0x53, 0xde, 0x96, 0x50, 0x6e, 0x60, 0xfe, 0x5b, 0xb4, 0xf2, 0x27, 0x7f, 0xb6,
];

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    /// When it arrived: nanoseconds since the Unix epoch; of a generated one, since the first.
    pub(super) at_ns: i64,
    /// Tokens read.
    pub(super) context: u64,
    /// Tokens written.
    pub(super) generated: u64,
}

/// Where the requests come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// A file; perhaps the cited one, byte for byte.
    File { path: PathBuf, is_cited: bool },
    /// The generator.
    Generated,
}

/// Requests in the order of their arrival; at least one.
#[derive(Debug, Clone)]
pub(super) struct Trace {
    pub(super) source: Source,
    pub(super) requests: Vec<Request>,
}

impl Trace {
    /// Reads the file `path`.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let bytes =
            fs::read(path).with_context(|| format!("{}: cannot be read", path.display()))?;
        let requests = parse(&bytes).with_context(|| path.display().to_string())?;
        let is_cited = <[u8; 32]>::from(Sha256::digest(&bytes)) == CITED_SHA256;
        Ok(Self {
            source: Source::File {
                path: path.to_owned(),
                is_cited,
            },
            requests,
        })
    }

    /// Makes `rows` requests up, with the distribution of the published trace.
    pub(super) fn generate(rows: usize, seed: u64) -> Self {
        let mut random = SplitMix64::of(seed, &[0x7261_6365]);
        let mut at_ns = 0_i64;
        let mut requests = Vec::with_capacity(rows);
        for row in 0..rows {
            if row > 0 {
                let pause_us = sample(PAUSE_US, &mut random);
                at_ns += i64::try_from(pause_us).unwrap_or(i64::MAX / 1_000) * 1_000;
            }
            let context = sample(CONTEXT_TOKENS, &mut random);
            let generated = sample(GENERATED_TOKENS, &mut random);
            requests.push(Request {
                at_ns,
                context,
                generated,
            });
        }
        Self {
            source: Source::Generated,
            requests,
        }
    }

    /// From the first request to the last, in nanoseconds.
    pub(super) fn span_ns(&self) -> i64 {
        match (self.requests.first(), self.requests.last()) {
            (Some(first), Some(last)) => last.at_ns.saturating_sub(first.at_ns),
            _ => 0,
        }
    }
}

fn parse(bytes: &[u8]) -> anyhow::Result<Vec<Request>> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    ensure!(
        !bytes.is_empty(),
        "the file is empty: a trace begins with the line {HEADER}"
    );
    let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let mut requests = Vec::new();
    for (line, text) in (1_usize..).zip(body.split(|byte| *byte == b'\n')) {
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        let text = std::str::from_utf8(text)
            .map_err(|error| anyhow::anyhow!("line {line}: no UTF-8: {error}"))?;
        if line == 1 {
            ensure!(
                text == HEADER,
                "line 1: {:?} is not the header {HEADER}",
                shorten(text)
            );
            continue;
        }
        let request = parse_line(text).with_context(|| format!("line {line}"))?;
        requests.push(request);
    }
    ensure!(
        !requests.is_empty(),
        "the trace has a header and no requests"
    );
    requests.sort_by_key(|request| request.at_ns);
    Ok(requests)
}

fn parse_line(text: &str) -> anyhow::Result<Request> {
    ensure!(!text.is_empty(), "the line is empty");
    let fields: Vec<&str> = text.split(',').collect();
    let [at, context, generated] = fields[..] else {
        bail!("{} fields, not 3: {:?}", fields.len(), shorten(text));
    };
    Ok(Request {
        at_ns: parse_instant(at).with_context(|| {
            format!(
                "TIMESTAMP {:?} is not like 2023-11-16 18:17:03.9799600",
                shorten(at)
            )
        })?,
        context: parse_tokens("ContextTokens", context)?,
        generated: parse_tokens("GeneratedTokens", generated)?,
    })
}

/// A text of a foreign file, short enough for a message.
fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(60).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

fn parse_tokens(name: &str, text: &str) -> anyhow::Result<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    ensure!(
        is_number,
        "{name} {:?} is not a whole number",
        shorten(text)
    );
    let tokens = text.parse().ok().filter(|tokens| *tokens <= MAX_TOKENS);
    tokens.with_context(|| format!("{name} {} is more than {MAX_TOKENS}", shorten(text)))
}

/// `YYYY-MM-DD HH:MM:SS`, then perhaps a fraction of 0 to 9 digits, then perhaps the offset of UTC, which later traces of the
/// same publisher write out. None for anything else; no nanosecond is lost or rounded.
fn parse_instant(text: &str) -> Option<i64> {
    let text = text
        .strip_suffix("+00:00")
        .or_else(|| text.strip_suffix('Z'))
        .unwrap_or(text);
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let bytes = whole.as_bytes();
    let shape = b"dddd-dd-dd dd:dd:dd";
    let fits = |(byte, shape): (&u8, &u8)| match shape {
        b'd' => byte.is_ascii_digit(),
        b' ' => matches!(byte, b' ' | b'T'),
        _ => byte == shape,
    };
    if bytes.len() != shape.len() || !bytes.iter().zip(shape).all(fits) {
        return None;
    }
    if fraction.len() > 9 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = |from: usize, to: usize| whole[from..to].parse::<u32>().ok();
    let year = i32::try_from(number(0, 4)?).ok()?;
    let date = NaiveDate::from_ymd_opt(year, number(5, 7)?, number(8, 10)?)?;
    let nanos = format!("{fraction:0<9}").parse().ok()?;
    let at = date.and_hms_nano_opt(number(11, 13)?, number(14, 16)?, number(17, 19)?, nanos)?;
    at.and_utc().timestamp_nanos_opt()
}

/// A quantile table: (ten-thousandths of all rows, the value that so many are at or below).
type Quantiles = &'static [(u32, u64)];

// Measured from `AzureLLMInferenceTrace_code.csv` (8,819 requests, 57 minutes of 2023-11-16), linear interpolation between
// order statistics. Mean context 2,048, mean generated 28; a pause is 390 ms on average, its coefficient of variation 13.
const CONTEXT_TOKENS: Quantiles = &[
    (0, 3),
    (50, 12),
    (100, 17),
    (250, 44),
    (500, 75),
    (1_000, 147),
    (1_500, 232),
    (2_000, 386),
    (2_500, 578),
    (3_000, 770),
    (3_500, 939),
    (4_000, 1_075),
    (4_500, 1_261),
    (5_000, 1_469),
    (5_500, 1_690),
    (6_000, 1_909),
    (6_500, 2_164),
    (7_000, 2_433),
    (7_500, 2_744),
    (8_000, 3_192),
    (8_500, 3_920),
    (9_000, 5_188),
    (9_250, 6_097),
    (9_500, 7_303),
    (9_700, 7_435),
    (9_900, 7_436),
    (10_000, 7_437),
];

const GENERATED_TOKENS: Quantiles = &[
    (0, 6),
    (500, 6),
    (1_000, 7),
    (1_500, 7),
    (2_000, 8),
    (2_500, 9),
    (3_000, 9),
    (3_500, 10),
    (4_000, 11),
    (4_500, 12),
    (5_000, 13),
    (5_500, 14),
    (6_000, 16),
    (6_500, 18),
    (7_000, 20),
    (7_500, 24),
    (8_000, 29),
    (8_500, 39),
    (9_000, 55),
    (9_250, 69),
    (9_500, 90),
    (9_700, 128),
    (9_800, 171),
    (9_900, 251),
    (9_950, 359),
    (9_990, 825),
    (9_997, 932),
    (10_000, 1_899),
];

/// The pause before the next arrival, in microseconds.
const PAUSE_US: Quantiles = &[
    (0, 6),
    (100, 22),
    (250, 52),
    (500, 88),
    (1_000, 209),
    (1_500, 885),
    (2_000, 1_184),
    (2_500, 2_077),
    (3_000, 3_292),
    (3_500, 5_344),
    (4_000, 15_104),
    (4_500, 38_217),
    (5_000, 63_798),
    (5_500, 89_557),
    (6_000, 94_990),
    (6_500, 97_944),
    (7_000, 100_130),
    (7_500, 103_996),
    (8_000, 160_069),
    (8_500, 198_831),
    (9_000, 272_856),
    (9_250, 302_229),
    (9_500, 400_776),
    (9_700, 597_436),
    (9_800, 798_746),
    (9_900, 2_205_071),
    (9_950, 9_978_331),
    (9_990, 79_232_503),
    (9_997, 152_491_266),
    (10_000, 217_168_952),
];

/// Draws from the distribution that `quantiles` describes.
fn sample(quantiles: Quantiles, random: &mut SplitMix64) -> u64 {
    // A draw of 32 bits is fine enough for the steepest step of the tables.
    let draw = random.below(1 << 32);
    let share = |ten_thousandths: u32| (u64::from(ten_thousandths) << 32) / u64::from(WHOLE);
    let above = quantiles.partition_point(|(at, _)| share(*at) <= draw);
    let above = above.clamp(1, quantiles.len() - 1);
    let ((from, low), (to, high)) = (quantiles[above - 1], quantiles[above]);
    let (from, to) = (share(from), share(to));
    let part = u128::from(high - low) * u128::from(draw - from) / u128::from(to - from);
    low + u64::try_from(part).expect("a part of a step is not larger than the step")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> anyhow::Result<Vec<Request>> {
        parse(text.as_bytes())
    }

    fn error(text: &str) -> String {
        format!("{:#}", read(text).expect_err("the text is no trace"))
    }

    #[test]
    fn line_ends_fractions_and_order_may_vary() {
        let rows = [
            "2023-11-16 18:17:04,3,2",
            "2023-11-16 18:17:03.9799600,4808,10",
            "2023-11-16 18:17:03.123456789,0,0",
            "2023-11-16T18:17:03.5Z,1,1",
            "2023-11-16 18:17:03.25+00:00,1,1",
        ];
        let whole = format!("{HEADER}\r\n{}\r\n", rows.join("\r\n"));
        let bare = format!("{HEADER}\n{}", rows.join("\n"));
        let requests = read(&whole).expect("CRLF is fine");
        assert_eq!(requests, read(&bare).expect("so is LF, without a last one"));
        let nanos: Vec<i64> = requests
            .iter()
            .map(|row| row.at_ns % 1_000_000_000)
            .collect();
        assert_eq!(
            nanos,
            [123_456_789, 250_000_000, 500_000_000, 979_960_000, 0]
        );
        assert_eq!(requests[3].context, 4808);
        assert_eq!(requests[4].at_ns - requests[0].at_ns, 876_543_211);
    }

    #[test]
    fn a_bad_line_is_named() {
        let cases = [
            ("2023-11-16 18:17:03,1", "line 3: 2 fields"),
            ("2023-11-16 18:17:03,1,2,3", "line 3: 4 fields"),
            ("", "line 3: the line is empty"),
            ("2023-11-16 18:17:03,-1,2", "line 3: ContextTokens \"-1\""),
            ("2023-11-16 18:17:03,1, 2", "line 3: GeneratedTokens \" 2\""),
            (
                "2023-11-16 18:17:03,1,1.5",
                "line 3: GeneratedTokens \"1.5\"",
            ),
            (
                "2023-11-16 18:17:03,1000000001,1",
                "line 3: ContextTokens 1000000001 is more",
            ),
            ("2023-11-16 18:17:03,99999999999999999999,1", "is more than"),
            ("2023-02-29 18:17:03,1,2", "line 3: TIMESTAMP"),
            ("2023-11-16 24:00:00,1,2", "line 3: TIMESTAMP"),
            ("2023-11-16 18:17:03.1234567890,1,2", "line 3: TIMESTAMP"),
            ("2023-11-16 18:17:03+09:00,1,2", "line 3: TIMESTAMP"),
            ("16/11/2023 18:17,1,2", "line 3: TIMESTAMP"),
            ("2500-11-16 18:17:03,1,2", "line 3: TIMESTAMP"),
        ];
        for (line, expected) in cases {
            let text =
                format!("{HEADER}\n2023-11-16 18:17:03,1,2\n{line}\n2023-11-16 18:17:04,1,2\n");
            let error = error(&text);
            assert!(error.contains(expected), "{line:?}: {error}");
        }
        let foreign = [HEADER.as_bytes(), b"\n\xff\xfe,1,2\n"].concat();
        let error = format!("{:#}", parse(&foreign).expect_err("no UTF-8"));
        assert!(error.starts_with("line 2: no UTF-8"), "{error}");
    }

    #[test]
    fn a_trace_without_requests_is_refused() {
        assert!(error("").contains("the file is empty"));
        assert!(error("\n").contains("line 1"));
        assert!(
            error("when,in,out\n2023-11-16 18:17:03,1,2\n").contains("line 1: \"when,in,out\"")
        );
        assert!(error(HEADER).contains("no requests"));
        assert!(error(&format!("{HEADER}\r\n")).contains("no requests"));
    }

    fn quantile(sorted: &[u64], ten_thousandths: usize) -> u64 {
        sorted[ten_thousandths * (sorted.len() - 1) / 10_000]
    }

    #[test]
    fn the_generated_trace_has_the_cited_percentiles() {
        let trace = Trace::generate(GENERATED_ROWS, super::super::SEED);
        let rows = &trace.requests;
        let pauses = rows
            .windows(2)
            .map(|pair| (pair[1].at_ns - pair[0].at_ns).unsigned_abs() / 1_000);
        let of = |values: &mut Vec<u64>| {
            values.sort_unstable();
            [1_000, 2_500, 5_000, 7_500, 9_000, 9_800].map(|at| quantile(values, at))
        };
        // (measured from the file, tolerance in percent: of a tail of 176 rows more than of the middle)
        let tables = [
            (
                "context",
                of(&mut rows.iter().map(|row| row.context).collect()),
                [147, 578, 1_469, 2_744, 5_188, 7_436],
            ),
            (
                "generated",
                of(&mut rows.iter().map(|row| row.generated).collect()),
                [7, 9, 13, 24, 55, 171],
            ),
            (
                "pause",
                of(&mut pauses.collect()),
                [209, 2_077, 63_798, 103_996, 272_856, 798_746],
            ),
        ];
        for (name, found, cited) in tables {
            for (at, (found, cited)) in found.into_iter().zip(cited).enumerate() {
                let tolerance = if at == 5 { 40 } else { 20 };
                let off = found.abs_diff(cited) * 100;
                assert!(
                    off <= cited * tolerance,
                    "{name}, number {at}: {found}, cited {cited}"
                );
            }
        }
        let span_s = trace.span_ns() / 1_000_000_000;
        assert!(
            (1_700..7_000).contains(&span_s),
            "{span_s} s, the file's is 3,436 s"
        );
    }
}
