//! Connections that break in the middle: at the end of every frame of an exchange, and at bytes that a seed chooses.
//!
//! Wherever one breaks, an append is stored once or not at all, its caller is never told otherwise, and what is asked again is answered.

use recoup::store::{Position, Revision};
use recoup_kurrentdb_standin::{Direction, Standin, Unit};

use crate::events::{charge, is_stored, is_unavailable, is_unknown, name, settle, start};
use crate::world::{bounded, open, options, standin};

/// More frames than any exchange here has.
const MANY: u64 = 200;

const DIRECTIONS: [Direction; 2] = [Direction::ToNode, Direction::FromNode];

/// Numbers that a seed leads to.
struct Seeded(u64);

impl Seeded {
    /// One below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// One append over a connection that breaks there. Says whether it came to that.
async fn appended_over_a_cut(
    standin: &Standin,
    id: &str,
    direction: Direction,
    unit: Unit,
    count: u64,
) -> bool {
    let log = open(options(standin)).await;
    settle(&log, charge(&format!("{id} before"))).await;
    standin.cut_after(0, direction, unit, count);
    let append = charge(id);
    let answer = bounded("an append", log.append(append.clone())).await;
    let is_cut = !standin.defuse(0);
    let is_there = is_stored(&log, &append).await;
    match &answer {
        Ok(recoup::store::Appended::Committed { .. }) => assert!(is_there),
        // The answer to the append came, and the read behind it was cut: then it is there.
        answer if is_unknown(answer) => {}
        answer if is_unavailable(answer) => assert!(!is_there, "an error wrote nothing"),
        other => panic!("{direction:?} {count} {unit:?}: {other:?}"),
    }
    settle(&log, append).await;
    let stream = format!("recoup.{}", name(id));
    let records = standin.records();
    let stored = records.iter().filter(|record| record.stream == stream);
    assert_eq!(stored.count(), 1, "{direction:?} {count} {unit:?}");
    is_cut
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_survives_a_cut_at_every_frame() {
    let standin = standin(1).await;
    for direction in DIRECTIONS {
        let mut cuts = 0;
        for count in 0..MANY {
            let id = format!("{direction:?} {count}");
            if !appended_over_a_cut(&standin, &id, direction, Unit::Frames, count).await {
                break;
            }
            cuts += 1;
        }
        // Headers and the events one way, headers, an answer and trailers the other; and the same for the read behind them.
        assert!((4..MANY).contains(&cuts), "{direction:?}: {cuts} frames");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_survives_a_cut_at_any_byte() {
    let standin = standin(1).await;
    let mut seeded = Seeded(0x5eed_2113);
    for direction in DIRECTIONS {
        let mut cuts = 0;
        for number in 0..60 {
            let id = format!("{direction:?} {number}");
            let byte = seeded.below(1_200);
            let is_cut = appended_over_a_cut(&standin, &id, direction, Unit::Bytes, byte).await;
            cuts += usize::from(is_cut);
        }
        assert!(cuts >= 10, "{direction:?}: {cuts} of 60 were cut");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_survives_a_cut_at_every_frame_and_at_any_byte() {
    let standin = standin(1).await;
    let log = open(options(&standin)).await;
    for number in 0..10 {
        settle(&log, charge(&format!("j{number}"))).await;
        settle(&log, start(&format!("j{number}"))).await;
    }
    let whole = log.read_all(Position::START, 100).await.expect("readable");
    assert_eq!(whole.len(), 30);
    let stream = log.read_stream(&name("j3"), Revision::FIRST).await;
    let stream = stream.expect("readable");
    let mut seeded = Seeded(0x5eed_1113);
    let mut places: Vec<_> = (0..40).map(|count| (Unit::Frames, count)).collect();
    places.extend((0..40).map(|_| (Unit::Bytes, seeded.below(12_000))));
    for direction in DIRECTIONS {
        let mut cuts = 0;
        for &(unit, count) in &places {
            standin.cut_after(0, direction, unit, count);
            let read = bounded("the log", log.read_all(Position::START, 100)).await;
            assert_eq!(read.as_ref(), Ok(&whole), "{direction:?} {count} {unit:?}");
            cuts += usize::from(!standin.defuse(0));
            standin.cut_after(0, direction, unit, count / 10);
            let read = bounded("a stream", log.read_stream(&name("j3"), Revision::FIRST)).await;
            assert_eq!(read.as_ref(), Ok(&stream), "{direction:?} {count} {unit:?}");
            cuts += usize::from(!standin.defuse(0));
        }
        assert!(cuts >= 20, "{direction:?}: {cuts} of 160 were cut");
    }
}

/// Whoever opens a ledger for the first time finds one ledger there, whatever became of its creation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_creation_survives_a_cut_at_every_frame() {
    for direction in DIRECTIONS {
        let mut cuts = 0;
        for count in 0..MANY {
            let standin = standin(1).await;
            standin.cut_after(0, direction, Unit::Frames, count);
            let log = open(options(&standin)).await;
            let is_cut = !standin.defuse(0);
            let again = open(options(&standin)).await;
            assert_eq!(log.identity(), again.identity());
            let records = standin.records();
            let created = records.iter().filter(|it| it.stream == "recoup.ledger");
            assert_eq!(created.count(), 1, "{direction:?} {count}");
            if !is_cut {
                break;
            }
            cuts += 1;
        }
        assert!((6..MANY).contains(&cuts), "{direction:?}: {cuts} frames");
    }
}
