//! What goes over the connections of a node, counted in bytes and in frames of HTTP/2, and where it is to stop.
//!
//! A frame is a header of nine bytes, the first three of which are the length of what follows. A client's connection begins with a preface of 24 bytes, which is no frame.

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// What a client sends.
    ToNode,
    /// What the node answers.
    FromNode,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Whole frames of HTTP/2.
    Frames,
}

/// How much has gone over the connections of a node, frames that were not finished left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes and frames that clients have sent.
    pub to_node: (u64, u64),
    /// Bytes and frames that the node has answered.
    pub from_node: (u64, u64),
}

impl Traffic {
    fn of(&mut self, direction: Direction) -> &mut (u64, u64) {
        match direction {
            Direction::ToNode => &mut self.to_node,
            Direction::FromNode => &mut self.from_node,
        }
    }
}

const PREFACE_BYTES: u64 = 24;
const HEADER_BYTES: u64 = 9;

/// Finds the frames in one direction of one connection.
#[derive(Debug, Clone)]
pub(crate) struct Frames {
    /// How many bytes of the header, or of the preface, are still to come.
    head: u64,
    body: u64,
    is_preface: bool,
}

impl Frames {
    pub(crate) const fn of(direction: Direction) -> Self {
        let is_preface = matches!(direction, Direction::ToNode);
        Self {
            head: if is_preface {
                PREFACE_BYTES
            } else {
                HEADER_BYTES
            },
            body: 0,
            is_preface,
        }
    }

    /// Whether this byte is the last one of a frame.
    fn step(&mut self, byte: u8) -> bool {
        if self.head == 0 {
            self.body -= 1;
        } else {
            let at = HEADER_BYTES.wrapping_sub(self.head);
            if !self.is_preface && at < 3 {
                self.body = (self.body << 8) | u64::from(byte);
            }
            self.head -= 1;
            if self.head == 0 && self.is_preface {
                *self = Self::of(Direction::FromNode);
                return false;
            }
        }
        let is_end = self.head == 0 && self.body == 0;
        if is_end {
            self.head = HEADER_BYTES;
        }
        is_end
    }
}

/// Where the connections are to be cut.
#[derive(Debug, Clone)]
struct Fuse {
    direction: Direction,
    unit: Unit,
    left: u64,
}

/// The traffic of a node, and the fuse in it.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    traffic: Traffic,
    fuse: Option<Fuse>,
}

impl Meter {
    pub(crate) fn arm(&mut self, direction: Direction, unit: Unit, left: u64) {
        self.fuse = Some(Fuse {
            direction,
            unit,
            left,
        });
    }

    pub(crate) fn defuse(&mut self) -> bool {
        self.fuse.take().is_some()
    }

    pub(crate) const fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// How many of `bytes` may pass before the fuse blows.
    pub(crate) fn allows(&self, direction: Direction, frames: &Frames, bytes: &[u8]) -> usize {
        let Some(fuse) = self.fuse.as_ref().filter(|it| it.direction == direction) else {
            return bytes.len();
        };
        let (mut frames, mut left) = (frames.clone(), fuse.left);
        for (at, &byte) in bytes.iter().enumerate() {
            if left == 0 {
                return at;
            }
            let is_end = frames.step(byte);
            left -= u64::from(is_end || fuse.unit == Unit::Bytes);
        }
        bytes.len()
    }

    /// Counts what has passed; says whether the fuse blew with it, and takes it out then.
    pub(crate) fn passed(
        &mut self,
        direction: Direction,
        frames: &mut Frames,
        bytes: &[u8],
    ) -> bool {
        let whole = bytes.iter().filter(|&&byte| frames.step(byte)).count() as u64;
        let count = self.traffic.of(direction);
        count.0 += bytes.len() as u64;
        count.1 += whole;
        let Some(fuse) = self.fuse.as_mut().filter(|it| it.direction == direction) else {
            return false;
        };
        let gone = match fuse.unit {
            Unit::Bytes => bytes.len() as u64,
            Unit::Frames => whole,
        };
        // Two connections may have been allowed the same last bytes.
        fuse.left = fuse.left.saturating_sub(gone);
        let is_blown = fuse.left == 0;
        if is_blown {
            self.fuse = None;
        }
        is_blown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A preface, a frame without a body, one with three bytes, one with 300.
    fn sent() -> (Vec<u8>, [usize; 3]) {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let mut ends = [0; 3];
        for (end, body) in ends.iter_mut().zip([0_usize, 3, 300]) {
            let length = u32::try_from(body).expect("small").to_be_bytes();
            bytes.extend_from_slice(&length[1..]);
            bytes.extend_from_slice(&[4, 0, 0, 0, 0, 1]);
            bytes.extend(std::iter::repeat_n(7, body));
            *end = bytes.len();
        }
        (bytes, ends)
    }

    #[test]
    fn a_fuse_blows_at_the_end_of_a_frame_or_at_a_byte() {
        let (bytes, ends) = sent();
        let cases = [
            (Unit::Frames, 1, ends[0]),
            (Unit::Frames, 2, ends[1]),
            (Unit::Frames, 3, ends[2]),
            (Unit::Bytes, 5, 5),
            (Unit::Bytes, 40, 40),
        ];
        for (unit, count, place) in cases {
            for size in [1, 7, bytes.len()] {
                let (mut meter, mut frames) = (Meter::default(), Frames::of(Direction::ToNode));
                meter.arm(Direction::ToNode, unit, count);
                let mut passed = 0;
                for part in bytes.chunks(size) {
                    let allowed = meter.allows(Direction::ToNode, &frames, part);
                    passed += allowed;
                    if meter.passed(Direction::ToNode, &mut frames, &part[..allowed]) {
                        break;
                    }
                }
                assert_eq!(passed, place, "{count} {unit:?} in parts of {size}");
                assert!(!meter.defuse());
            }
        }
    }

    #[test]
    fn what_goes_the_other_way_is_counted_and_passes() {
        let (bytes, _) = sent();
        let (mut meter, mut frames) = (Meter::default(), Frames::of(Direction::ToNode));
        meter.arm(Direction::FromNode, Unit::Bytes, 1);
        assert_eq!(
            meter.allows(Direction::ToNode, &frames, &bytes),
            bytes.len()
        );
        assert!(!meter.passed(Direction::ToNode, &mut frames, &bytes));
        assert_eq!(meter.traffic().to_node, (bytes.len() as u64, 3));
        assert!(meter.defuse());
    }
}
