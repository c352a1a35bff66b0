//! The file: its digest first, its lines second.
//!
//! What cannot be read twice (stdin, a pipe) is copied to a temporary file on the way. On the second way no byte is taken that was not
//! digested on the first: a file that grew is read up to where it ended, and one that changed is noticed at the end.
//!
//! Bounds: one line of at most [`MAX_LINE_BYTES`] is held at a time.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Take, Write};
use std::path::Path;

use anyhow::Context;
use sha2::{Digest, Sha256};

/// The longest line, in bytes.
pub(super) const MAX_LINE_BYTES: u64 = 1 << 20;

/// UTF-8's byte order mark, which some programs put before a file.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// A digest of a file.
pub(super) type FileDigest = [u8; 32];

/// A file that was digested.
pub(super) struct Input {
    file: File,
    seen: Seen,
}

/// What the first way through a file gives.
struct Seen {
    digest: FileDigest,
    bytes: u64,
    lines: u64,
}

impl Input {
    /// Opens and digests `path`; `-` is stdin.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let opened = if path.as_os_str() == "-" {
            Self::spool(io::stdin().lock())
        } else {
            Self::of_file(path)
        };
        opened.with_context(|| format!("{} cannot be read", path.display()))
    }

    fn of_file(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Self::spool(file);
        }
        let seen = digest(&mut file, &mut io::sink())?;
        file.seek(SeekFrom::Start(0))?;
        Ok(Self { file, seen })
    }

    /// Copies what can be read only once.
    fn spool(mut source: impl Read) -> io::Result<Self> {
        let mut file = tempfile::tempfile()?;
        let seen = digest(&mut source, &mut file)?;
        file.seek(SeekFrom::Start(0))?;
        Ok(Self { file, seen })
    }

    pub(super) const fn digest(&self) -> FileDigest {
        self.seen.digest
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.seen.bytes
    }

    /// How many lines there are, empty ones too.
    pub(super) const fn lines(&self) -> u64 {
        self.seen.lines
    }

    /// The first line, without its line break, as far as [`MAX_LINE_BYTES`] reach.
    pub(super) fn first_line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        BufReader::new((&self.file).take(MAX_LINE_BYTES)).read_until(b'\n', &mut line)?;
        self.file.seek(SeekFrom::Start(0))?;
        while line.last().is_some_and(|byte| b"\r\n".contains(byte)) {
            line.pop();
        }
        Ok(line.strip_prefix(MARK).map_or(line.clone(), <[u8]>::to_vec))
    }

    /// Another way through the file, before the one that counts.
    pub(super) fn again(&self) -> io::Result<Lines> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(0))?;
        Ok(Lines::of(file, &self.seen))
    }

    /// Goes back to the beginning, where another way through the file has left it somewhere else.
    pub(super) fn rewind(&mut self) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(0)).map(drop)
    }

    /// Begins the second way.
    pub(super) fn into_lines(self) -> Lines {
        Lines::of(self.file, &self.seen)
    }
}

fn digest(source: &mut impl Read, copy: &mut impl Write) -> io::Result<Seen> {
    let mut digest = Sha256::new();
    let (mut bytes, mut breaks, mut last) = (0, 0, b'\n');
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = match source.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let part = &buffer[..read];
        digest.update(part);
        copy.write_all(part)?;
        bytes += read as u64;
        breaks += part.iter().filter(|byte| **byte == b'\n').count() as u64;
        last = part[read - 1];
    }
    // The last line may lack its line break.
    let lines = breaks + u64::from(last != b'\n');
    Ok(Seen {
        digest: digest.finalize().into(),
        bytes,
        lines,
    })
}

/// A line that cannot be read.
pub(super) struct Unreadable {
    pub(super) number: u64,
    pub(super) cause: String,
}

/// The lines of a file, on the second way.
pub(super) struct Lines {
    reader: BufReader<Take<File>>,
    expected: FileDigest,
    digest: Sha256,
    number: u64,
    bytes: u64,
    line: Vec<u8>,
}

impl Lines {
    fn of(file: File, seen: &Seen) -> Self {
        Self {
            reader: BufReader::with_capacity(1 << 16, file.take(seen.bytes)),
            expected: seen.digest,
            digest: Sha256::new(),
            number: 0,
            bytes: 0,
            line: Vec::new(),
        }
    }

    pub(super) const fn bytes_read(&self) -> u64 {
        self.bytes
    }

    /// The next line that is not empty, without its line break, and its number.
    pub(super) fn next(&mut self) -> Result<Option<(u64, &[u8])>, Unreadable> {
        loop {
            self.line.clear();
            let read = (&mut self.reader)
                .take(MAX_LINE_BYTES + 1)
                .read_until(b'\n', &mut self.line)
                .map_err(|error| Unreadable {
                    number: self.number + 1,
                    cause: format!("the file cannot be read: {error}"),
                })?;
            if read == 0 {
                return self.end();
            }
            self.number += 1;
            self.bytes += read as u64;
            self.digest.update(&self.line);
            if self.line.last() == Some(&b'\n') {
                self.line.pop();
            } else if self.line.len() as u64 > MAX_LINE_BYTES {
                let cause = format!("the line has more than {MAX_LINE_BYTES} bytes");
                return Err(Unreadable {
                    number: self.number,
                    cause,
                });
            }
            let mark = if self.number == 1 && self.line.starts_with(MARK) {
                MARK.len()
            } else {
                0
            };
            if !self.line[mark..].iter().all(u8::is_ascii_whitespace) {
                return Ok(Some((self.number, &self.line[mark..])));
            }
        }
    }

    fn end(&self) -> Result<Option<(u64, &[u8])>, Unreadable> {
        let digest: FileDigest = self.digest.clone().finalize().into();
        if digest == self.expected {
            return Ok(None);
        }
        let cause =
            "the file changed while it was read: command ids were made for what it was before";
        Err(Unreadable {
            number: self.number,
            cause: cause.to_owned(),
        })
    }
}
