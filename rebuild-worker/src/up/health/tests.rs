//! What is ready and what is not, and why.

use recoup::Position;
use recoup::sql::log::FollowedFigures;
use recoup_projections::{Checkpoint, Halt, Projection};

use super::*;
use crate::up::status::LoopStatus;

const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);

fn stand(behind_seconds: Option<u64>) -> Stand {
    let lag = behind_seconds.map(|seconds| i64::try_from(seconds).expect("small") * 1_000_000);
    Stand {
        checkpoint: Checkpoint {
            projection: Projection::Jobs,
            position: Position::new(4),
            event_id: None,
            definition: "version 1, zone UTC".to_owned(),
            retired: 0,
            halted: None,
            lag_events: u64::from(lag.is_some()),
        },
        waiting_since: lag.map(|lag| Timestamp::from_micros(NOW.as_micros() - lag)),
        refused: None,
        skips: 0,
    }
}

fn measured(stand: Stand) -> Measured {
    let status = LoopStatus::new("projector", Duration::from_secs(30));
    status.succeed();
    Measured {
        standing: Ok(Standing {
            head: Position::new(5),
            projections: vec![stand],
            figures: None,
            dead_letters_open: 0,
            first_deadline: None,
            last_rebuild: None,
        }),
        at: NOW,
        loops: vec![status.view()],
    }
}

/// The only reason that is given.
fn reason(measured: &Measured) -> String {
    let (is_ready, document) = judge(measured);
    assert!(!is_ready, "{document}");
    let reasons = document["reasons"].as_array().expect("a list");
    assert_eq!(reasons.len(), 1, "{document}");
    reasons[0].as_str().expect("a text").to_owned()
}

#[tokio::test]
async fn a_projection_at_the_head_or_shortly_behind_it_is_ready() {
    for behind in [None, Some(0), Some(60)] {
        let (is_ready, document) = judge(&measured(stand(behind)));
        assert!(is_ready, "{document}");
    }
}

#[tokio::test]
async fn what_is_not_ready_says_why() {
    let behind = measured(stand(Some(61)));
    assert_eq!(
        reason(&behind),
        "projection jobs is 1 events behind, for 61 s"
    );
    let halted = {
        let mut stand = stand(Some(1));
        stand.checkpoint.halted = Some(Halt {
            position: Position::new(5),
            reason: "unknown type".to_owned(),
        });
        measured(stand)
    };
    assert_eq!(
        reason(&halted),
        "projection jobs is halted at event 5: unknown type"
    );
    let refused = measured(Stand {
        refused: Some("made by another build".to_owned()),
        ..stand(None)
    });
    assert_eq!(reason(&refused), "made by another build");
    let with_figures = |halted, waiting_since| {
        let mut measured = measured(stand(None));
        let standing = measured.standing.as_mut().expect("it was measured");
        standing.figures = Some(Figures {
            followed: FollowedFigures {
                position: Position::new(4),
                halted,
                reservations: 1,
                oldest_reservation: None,
            },
            waiting_since,
        });
        measured
    };
    assert!(judge(&with_figures(None, None)).0);
    let halted = with_figures(Some((Position::new(5), "unknown type".to_owned())), None);
    assert_eq!(
        reason(&halted),
        "account figures are halted at event 5, and no charge is admitted: unknown type"
    );
    let late = Timestamp::from_micros(NOW.as_micros() - 61_000_000);
    assert_eq!(
        reason(&with_figures(None, Some(late))),
        "account figures are behind for 61 s"
    );
    let silent = Measured {
        standing: Err("nothing within 2s".to_owned()),
        ..measured(stand(None))
    };
    assert_eq!(
        reason(&silent),
        "the store does not answer: nothing within 2s"
    );
    let mut dead = measured(stand(None));
    dead.loops[0].last_beat_age_seconds = 31.0;
    assert!(reason(&dead).starts_with("loop projector gave no sign of life for 31 s"));
}
