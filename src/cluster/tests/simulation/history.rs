//! The calls of clients, and whether some order of them explains what they saw.
//!
//! A conversation is a list that only grows, and each read returns all of it. So an order of all
//! calls is given by the list itself: an append comes when its event is added, and a read of N
//! events between the appends N and N + 1. The history is linearizable exactly if no call comes
//! before one that had ended when it began.

use std::collections::{BTreeMap, BTreeSet};

/// The end of a call that may still change something.
pub(super) const NEVER: u64 = u64::MAX;

/// A call of a client. `began` and `ended` are numbers of events of the simulation, which no two
/// events share.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) conversation: u32,
    pub(super) began: u64,
    pub(super) ended: u64,
    pub(super) what: What,
}

/// What a client asked for and was told.
#[derive(Clone, Debug)]
pub(super) enum What {
    Acknowledged(u64),
    /// Told that the event was not appended.
    Refused(u64),
    /// Not told whether the event was appended.
    Unknown(u64),
    Read(Vec<u64>),
}

/// Checks the calls against the events that each conversation has in the log.
///
/// # Errors
/// What cannot be explained.
pub(super) fn check(calls: &[Call], stored: &BTreeMap<u32, Vec<u64>>) -> Result<(), String> {
    let conversations: BTreeSet<u32> = calls.iter().map(|call| call.conversation).collect();
    for conversation in conversations.union(&stored.keys().copied().collect()) {
        let of_conversation = calls
            .iter()
            .filter(|call| call.conversation == *conversation);
        let events = stored.get(conversation).map_or(&[][..], Vec::as_slice);
        check_conversation(of_conversation.collect(), events)
            .map_err(|what| format!("conversation {conversation}: {what}"))?;
    }
    Ok(())
}

fn check_conversation(mut calls: Vec<&Call>, stored: &[u64]) -> Result<(), String> {
    let mut places = BTreeMap::new();
    for (index, event) in stored.iter().enumerate() {
        if places.insert(*event, index).is_some() {
            return Err(format!("event {event} is stored twice"));
        }
    }
    calls.sort_by_key(|call| call.began);
    let mut asked = BTreeSet::new();
    let mut by_place = Vec::new();
    for call in &calls {
        let place = match &call.what {
            What::Acknowledged(event) | What::Unknown(event) | What::Refused(event) => {
                asked.insert(*event);
                match (&call.what, places.get(event)) {
                    (What::Refused(_), Some(_)) => {
                        return Err(format!("event {event} was refused and is stored"));
                    }
                    (What::Acknowledged(_), None) => {
                        return Err(format!("event {event} was acknowledged and is lost"));
                    }
                    (_, None) => continue,
                    (_, Some(index)) => 2 * index + 1,
                }
            }
            What::Read(events) if stored.starts_with(events) => 2 * events.len(),
            What::Read(events) => return Err(format!("{events:?} was read of {stored:?}")),
        };
        by_place.push((place, *call));
    }
    if let Some(event) = stored.iter().find(|event| !asked.contains(event)) {
        return Err(format!("event {event} was stored, and nobody appended it"));
    }
    check_order(&by_place)
}

/// Checks that no call has a place before one that had ended when it began. `calls` are sorted by
/// when they began.
fn check_order(calls: &[(usize, &Call)]) -> Result<(), String> {
    let mut by_end = calls.to_vec();
    by_end.sort_by_key(|(_, call)| call.ended);
    let mut ended = by_end.iter().peekable();
    let mut last: Option<&(usize, &Call)> = None;
    for (place, call) in calls {
        while let Some(before) = ended.next_if(|(_, before)| before.ended < call.began) {
            last = last.filter(|last| last.0 >= before.0).or(Some(before));
        }
        if let Some((_, before)) = last.filter(|last| last.0 > *place) {
            return Err(format!("{call:?} does not show what {before:?} has shown"));
        }
    }
    Ok(())
}

mod tests {
    use super::*;

    fn call(began: u64, ended: u64, what: What) -> Call {
        Call {
            conversation: 0,
            began,
            ended,
            what,
        }
    }

    fn outcome(calls: &[Call], stored: &[u64]) -> Result<(), String> {
        check(calls, &BTreeMap::from([(0, stored.to_vec())]))
    }

    // A checker that accepts everything would hide every fault that the simulation can find.
    #[test]
    fn forged_histories_are_refused() {
        use What::{Acknowledged, Read, Refused, Unknown};
        let append = |event, ended| call(event * 10, ended, Acknowledged(event));
        let honest = [
            append(1, 12),
            append(2, 29),
            // It began before the second append had ended, so it may miss it.
            call(25, 40, Read(vec![1])),
            call(41, 50, Read(vec![1, 2])),
            call(42, NEVER, Unknown(3)),
            call(43, 44, Refused(4)),
        ];
        assert_eq!(outcome(&honest, &[1, 2]), Ok(()));
        assert_eq!(outcome(&honest, &[1, 2, 3]), Ok(()));

        let is_refused = |forged: Call, stored: &[u64], why: &str| {
            let mut calls = honest.to_vec();
            calls.push(forged);
            let error = outcome(&calls, stored).unwrap_err();
            assert!(error.contains(why), "{error}");
        };
        let stale = call(60, 70, Read(vec![1]));
        is_refused(stale, &[1, 2], "does not show");
        let future = call(60, 70, Read(vec![1, 2, 3]));
        is_refused(future.clone(), &[1, 2], "was read of");
        let back = call(71, 72, Read(vec![1, 2]));
        is_refused(back.clone(), &[1, 2, 5], "nobody appended it");
        let mut calls = honest.to_vec();
        calls.extend([future, back]);
        assert!(outcome(&calls, &[1, 2, 3]).is_err(), "a read went back");
        let seen_early = call(2, 5, Read(vec![1]));
        is_refused(seen_early, &[1, 2], "does not show");
        is_refused(call(60, 70, Acknowledged(6)), &[1, 2], "is lost");
        is_refused(call(60, 70, Acknowledged(6)), &[6, 1, 2], "was read of");
        let first = call(5, 7, Acknowledged(7));
        is_refused(first, &[1, 2, 7], "does not show");
        is_refused(call(60, 70, Read(vec![1, 2])), &[1, 2, 2], "twice");
        is_refused(call(60, 70, Refused(2)), &[1, 2], "was refused");
    }
}
