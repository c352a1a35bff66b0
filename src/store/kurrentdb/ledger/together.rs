//! Many appends in one call: unrelated ones at once, the others in order.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Shared;
use crate::account::Admission;
use crate::codec::StreamName;
use crate::store::{Append, Appended, Revision, StoreError};

/// Appends that share a stream or an account, in the order of their call: what one leads to decides about the next.
pub(super) fn related(appends: Vec<Append>) -> Vec<Vec<(usize, Append)>> {
    let mut groups: Vec<Vec<(usize, Append)>> = Vec::new();
    let mut of_key: HashMap<String, usize> = HashMap::new();
    for (index, append) in appends.into_iter().enumerate() {
        let admitted = append.admission.iter().map(Admission::account);
        let moved = append.events.iter().filter_map(|new| new.event.account());
        let accounts = admitted.chain(moved).map(|account| format!("a{account}"));
        let keys: Vec<_> = accounts.chain([format!("s{}", append.stream)]).collect();
        let mut known: Vec<_> = keys
            .iter()
            .filter_map(|key| of_key.get(key).copied())
            .collect();
        known.sort_unstable();
        known.dedup();
        let home = known.first().copied().unwrap_or(groups.len());
        if home == groups.len() {
            groups.push(Vec::new());
        }
        for other in known.into_iter().skip(1) {
            let moved = std::mem::take(&mut groups[other]);
            groups[home].extend(moved);
            for group in of_key.values_mut().filter(|group| **group == other) {
                *group = home;
            }
        }
        groups[home].push((index, append));
        for key in keys {
            of_key.insert(key, home);
        }
    }
    for group in &mut groups {
        group.sort_unstable_by_key(|(index, _)| *index);
    }
    groups.retain(|group| !group.is_empty());
    groups
}

pub(super) async fn append_in_order(
    shared: Arc<Shared>,
    group: Vec<(usize, Append)>,
) -> Vec<(usize, Result<Appended, StoreError>)> {
    let mut answers = Vec::with_capacity(group.len());
    let mut broken: HashSet<StreamName> = HashSet::new();
    let mut away = None;
    for (index, append) in group {
        let stream = append.stream.clone();
        let answer = if let Some(cause) = &away {
            // Nobody waits for the same silence again.
            Err(StoreError::Unavailable {
                cause: String::clone(cause),
            })
        } else if broken.contains(&stream) {
            let stored = shared.log.read_stream(&stream, Revision::FIRST).await;
            stored.map(|events| Appended::Conflict {
                current: events.last().map(|last| last.revision),
            })
        } else {
            shared.append(append).await
        };
        if let Err(StoreError::Unavailable { cause }) = &answer {
            away.get_or_insert_with(|| cause.clone());
        }
        if !matches!(answer, Ok(Appended::Committed { .. })) {
            broken.insert(stream);
        }
        answers.push((index, answer));
    }
    answers
}
