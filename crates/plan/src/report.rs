//! What should the status say, now that the acts were tried?

use std::borrow::Cow;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};
use spanwire_api::condition::{READY, reason};

use crate::plan::{Code, Event, ObjectKind, Status, Verdict, Word};

/// The longest message and the longest note of an event, in bytes: Kubernetes' limit for notes. That for messages is 32 KiB,
/// but one is told up to three times in a status, and what a user wrote may be in it as often as he likes.
pub const MAX_MESSAGE: usize = 1024;
/// At the end of a message that was cut.
const CUT: &str = "…";

/// An act that failed, as a condition will tell it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The condition that the act serves.
    pub condition: &'static str,
    /// PascalCase, as for a verdict.
    pub reason: &'static str,
    /// A sentence for a person.
    pub message: String,
}

/// One write of a status, and what to announce with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// What `status` should be, only our own fields, `null` for those to remove.
    pub status: Map<String, Value>,
    /// What becomes of the code.
    pub code: Option<Code>,
    /// To publish after the write.
    pub events: Vec<Event>,
}

/// How a pass ended that came to no plan, or not to the end of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// By an error of the operator's own.
    Panicked,
    /// By its deadline, after this time.
    TimedOut(Duration),
}

/// The message, cut between two characters where it is longer than anybody would read.
pub fn cut(message: &str) -> Cow<'_, str> {
    if message.len() <= MAX_MESSAGE {
        return Cow::Borrowed(message);
    }
    let end = message.floor_char_boundary(MAX_MESSAGE - CUT.len());
    let (kept, _) = message.split_at(end);
    Cow::Owned(format!("{kept}{CUT}"))
}

/// The write that makes `live` (the object's status) say what is true, or none where it says so already.
///
/// A timestamp alone is no reason to write; `lastTransitionTime` moves only with a condition's status.
pub fn report(
    live: &Value,
    generation: i64,
    status: &Status,
    failures: &[Failure],
    now: Timestamp,
) -> Option<Report> {
    let mut verdicts = status.verdicts.clone();
    for failure in failures {
        let told = Verdict::error(failure.condition, failure.reason, failure.message.clone());
        match verdicts
            .iter_mut()
            .find(|verdict| verdict.condition == failure.condition)
        {
            Some(verdict) if verdict.word == Word::Error => {
                verdict.message = format!("{}\n{}", verdict.message, failure.message);
            }
            Some(verdict) => *verdict = told,
            None => verdicts.push(told),
        }
    }
    let (word, reason, message) = sum(&verdicts, status.sum_of);
    let mut conditions: Vec<Value> = verdicts
        .iter()
        .map(|verdict| {
            condition(
                verdict.condition,
                verdict.word,
                verdict.reason,
                &verdict.message,
            )
        })
        .collect();
    if !status.sum_of.is_empty() {
        conditions.push(condition(READY, word, &reason, &message));
    }
    let old = conditions_of(live);
    let mut events = announcements(status, &verdicts, old);
    events.extend_from_slice(&status.events);
    for condition in &mut conditions {
        date(condition, old, generation, now);
    }

    let mut wanted = status.fields.clone();
    wanted.extend(summary(conditions, word, &message));
    let code = status.code.filter(|code| *code != Code::Keep);
    (!is_said(&wanted, live) || code.is_some()).then_some(Report {
        status: wanted,
        code,
        events,
    })
}

/// The write that makes `live` (the status of this object) tell of a pass that was cut short, or none where it does.
///
/// Only `Ready` and the summary of it change. The rest is what was known last, and of a token the only place where its
/// outcome is known. The next pass that comes to its end says everything anew.
pub fn cut_short(
    live: &Value,
    generation: i64,
    object: (ObjectKind, &str),
    cut: Cut,
    now: Timestamp,
) -> Option<Report> {
    let object = format!("{} \"{}\"", object.0.name(), object.1);
    let (reason, message) = match cut {
        Cut::Panicked => (
            reason::INTERNAL_ERROR,
            format!(
                "the operator failed on {object} by an error of its own and tries again: if this stays, report it with \
                 what the operator's log says of it"
            ),
        ),
        Cut::TimedOut(limit) => (
            reason::TIMED_OUT,
            format!(
                "the operator was not done with {object} after {limit:?} and tries again: if this stays, see whether \
                 the API server is slow, and what the operator's log says of it"
            ),
        ),
    };
    let old = conditions_of(live);
    let mut ready = condition(READY, Word::Error, reason, &message);
    date(&mut ready, old, generation, now);
    let others = old.iter().filter(|old| old["type"] != READY).cloned();
    let conditions = others.chain([ready]).collect();
    let status = Map::from_iter(summary(conditions, Word::Error, &message));
    (!is_said(&status, live)).then_some(Report {
        status,
        ..Report::default()
    })
}

fn conditions_of(live: &Value) -> &[Value] {
    live.get("conditions")
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// The fields that every kind has.
fn summary(conditions: Vec<Value>, word: Word, message: &str) -> [(String, Value); 3] {
    [
        ("conditions", Value::Array(conditions)),
        ("status", json!(word)),
        ("message", json!(cut(message))),
    ]
    .map(|(field, value)| (field.to_owned(), value))
}

/// Whether a write of these fields would change nothing.
fn is_said(wanted: &Map<String, Value>, live: &Value) -> bool {
    wanted.iter().all(|(field, wanted)| match live.get(field) {
        Some(live) => live == wanted,
        None => wanted.is_null(),
    })
}

/// The sum of the required conditions, as upstream builds it (`facts/skupper-v2.md` §1.3): the first that is absent,
/// else the first that is False, else Ready.
fn sum(verdicts: &[Verdict], required: &[&'static str]) -> (Word, String, String) {
    let told = |verdict: &Verdict| {
        (
            verdict.word,
            verdict.reason.to_owned(),
            verdict.message.clone(),
        )
    };
    if required.is_empty() {
        return verdicts.first().map_or_else(
            || (Word::Pending, "Pending".to_owned(), "Pending".to_owned()),
            told,
        );
    }
    let find = |condition: &str| {
        verdicts
            .iter()
            .find(|verdict| verdict.condition == condition)
    };
    if let Some(absent) = required.iter().find(|condition| find(condition).is_none()) {
        return (
            Word::Pending,
            format!("Not{absent}"),
            format!("Not {absent}"),
        );
    }
    required
        .iter()
        .filter_map(|condition| find(condition))
        .find(|verdict| !verdict.holds())
        .map_or_else(|| (Word::Ready, "Ready".to_owned(), "OK".to_owned()), told)
}

fn condition(kind: &str, word: Word, reason: &str, message: &str) -> Value {
    let status = if word == Word::Ready { "True" } else { "False" };
    json!({"type": kind, "status": status, "reason": reason, "message": cut(message)})
}

fn find<'a>(conditions: &'a [Value], kind: &Value) -> Option<&'a Value> {
    conditions
        .iter()
        .find(|condition| condition.get("type") == Some(kind))
}

fn date(condition: &mut Value, old: &[Value], generation: i64, now: Timestamp) {
    let before = find(old, &condition["type"]);
    let turned = before.and_then(|before| before.get("status")) != Some(&condition["status"]);
    let since = match before.and_then(|before| before.get("lastTransitionTime")) {
        Some(since) if !turned => since.clone(),
        _ => json!(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now)),
    };
    condition["lastTransitionTime"] = since;
    condition["observedGeneration"] = json!(generation);
}

fn announcements(status: &Status, verdicts: &[Verdict], old: &[Value]) -> Vec<Event> {
    let mut events = Vec::new();
    for (condition, up, down) in &status.announces {
        let Some(verdict) = verdicts
            .iter()
            .find(|verdict| verdict.condition == *condition)
        else {
            continue;
        };
        let was = find(old, &json!(condition)).and_then(|old| old.get("status")?.as_str());
        match (was == Some("True"), verdict.holds()) {
            (false, true) => events.push(Event {
                warning: false,
                reason: (*up).to_owned(),
                note: format!("{condition} is true"),
            }),
            (true, false) => events.push(Event {
                warning: true,
                reason: (*down).to_owned(),
                note: verdict.message.clone(),
            }),
            _ => {}
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn status(verdicts: Vec<Verdict>) -> Status {
        Status {
            verdicts,
            sum_of: &["Configured", "Running"],
            ..Status::default()
        }
    }

    #[test]
    fn a_status_that_says_it_already_is_not_written_again() {
        let status = status(vec![Verdict::ready("Configured")]);
        let first = report(&Value::Null, 3, &status, &[], at(10)).unwrap();
        assert_eq!(first.status["message"], "Not Running");
        assert_eq!(first.status["status"], "Pending");
        let live = Value::Object(first.status);
        assert_eq!(report(&live, 3, &status, &[], at(20)), None);
        let newer = report(&live, 4, &status, &[], at(20)).unwrap();
        assert_eq!(newer.status["conditions"][0]["observedGeneration"], 4);
        assert_eq!(
            newer.status["conditions"][0]["lastTransitionTime"],
            "1970-01-01T00:00:10Z"
        );
    }

    #[test]
    fn a_failed_act_is_told_in_the_condition_that_it_serves() {
        let status = status(vec![
            Verdict::ready("Configured"),
            Verdict::ready("Running"),
        ]);
        let failure = Failure {
            condition: "Configured",
            reason: "WriteFailed",
            message: "could not create Secret \"a\": forbidden".to_owned(),
        };
        let report = report(&Value::Null, 1, &status, &[failure], at(1)).unwrap();
        assert_eq!(report.status["status"], "Error");
        assert_eq!(report.status["conditions"][2]["type"], "Ready");
        assert_eq!(report.status["conditions"][2]["reason"], "WriteFailed");
    }

    /// 5,000 unknown settings made a status that etcd did not take, so that nothing at all was told.
    #[test]
    fn a_message_has_a_bound_and_says_that_it_was_cut() {
        let long = format!("settings {} are not known", "ä".repeat(40_000));
        let status = status(vec![Verdict::error("Configured", "Invalid", long.clone())]);
        let failure = Failure {
            condition: "Configured",
            reason: "WriteFailed",
            message: long,
        };
        let told = report(&Value::Null, 1, &status, &[failure], at(1)).unwrap();
        let conditions = told.status["conditions"].as_array().unwrap();
        let messages = conditions.iter().map(|condition| &condition["message"]);
        for message in messages.chain([&told.status["message"]]) {
            let message = message.as_str().unwrap();
            assert!(message.len() <= MAX_MESSAGE, "{}", message.len());
            assert!(
                message.starts_with("settings ä") && message.ends_with('…')
                    || message == "Not Running"
            );
        }
        let live = Value::Object(told.status);
        assert_eq!(conditions_of(&live).len(), 2);
        assert_eq!(report(&live, 1, &status, &[], at(2)), None);
        let whole = "a".repeat(MAX_MESSAGE);
        assert_eq!(cut(&whole), whole);
    }

    #[test]
    fn what_a_status_announces_is_announced_once() {
        let event = Event {
            warning: true,
            reason: "Refused".to_owned(),
            note: "the grant is used up".to_owned(),
        };
        let status = Status {
            events: vec![event.clone()],
            ..status(vec![Verdict::error("Redeemed", "UsedUp", "used up")])
        };
        let told = report(&Value::Null, 1, &status, &[], at(1)).unwrap();
        assert_eq!(told.events, [event]);
        assert_eq!(
            report(&Value::Object(told.status), 1, &status, &[], at(2)),
            None
        );
    }

    #[test]
    fn turning_is_announced_once() {
        let status = Status {
            announces: vec![("Running", "Up", "Down")],
            ..status(vec![Verdict::ready("Running")])
        };
        let up = report(&Value::Null, 1, &status, &[], at(1)).unwrap();
        assert_eq!(up.events[0].reason, "Up");
        assert_eq!(
            report(&Value::Object(up.status), 1, &status, &[], at(2)),
            None
        );
    }

    #[test]
    fn a_pass_that_was_cut_short_is_told_once_and_takes_back_nothing() {
        let good = status(vec![
            Verdict::ready("Configured"),
            Verdict::ready("Running"),
        ]);
        let ready = report(&Value::Null, 1, &good, &[], at(1)).unwrap();
        let mut live = Value::Object(ready.status);
        let cut = |live: &Value, cut, seconds| {
            cut_short(live, 2, (ObjectKind::Site, "west"), cut, at(seconds))
        };

        let told = cut(&live, Cut::Panicked, 5).unwrap();
        let conditions = told.status["conditions"].as_array().unwrap();
        assert_eq!(conditions[..2], live["conditions"].as_array().unwrap()[..2]);
        assert_eq!(conditions[2]["type"], "Ready");
        assert_eq!(conditions[2]["status"], "False");
        assert_eq!(conditions[2]["reason"], reason::INTERNAL_ERROR);
        assert_eq!(conditions[2]["lastTransitionTime"], "1970-01-01T00:00:05Z");
        assert_eq!(told.status["status"], "Error");
        assert_eq!(told.status["message"], conditions[2]["message"]);
        live = Value::Object(told.status);
        assert_eq!(cut(&live, Cut::Panicked, 6), None);

        let told = cut(&live, Cut::TimedOut(Duration::from_secs(30)), 7).unwrap();
        let ready = &told.status["conditions"][2];
        assert_eq!(ready["reason"], reason::TIMED_OUT);
        assert_eq!(ready["lastTransitionTime"], "1970-01-01T00:00:05Z");
        live = Value::Object(told.status);

        let again = report(&live, 2, &good, &[], at(9)).unwrap();
        assert_eq!(again.status["status"], "Ready");
        assert_eq!(again.status["conditions"][2]["status"], "True");
    }

    #[test]
    fn of_a_token_whose_pass_was_cut_short_the_outcome_stays() {
        let redeemed = Status {
            verdicts: vec![Verdict::ready("Redeemed")],
            ..Status::default()
        };
        let live = Value::Object(
            report(&Value::Null, 1, &redeemed, &[], at(1))
                .unwrap()
                .status,
        );
        let token = (ObjectKind::AccessToken, "east");
        let told = cut_short(&live, 1, token, Cut::Panicked, at(2)).unwrap();
        assert_eq!(told.status["conditions"][0], live["conditions"][0]);
        // Ready is not one of its conditions but for that.
        let told = Value::Object(told.status);
        let again = report(&told, 1, &redeemed, &[], at(3)).unwrap();
        assert_eq!(again.status["conditions"], live["conditions"]);
    }
}
