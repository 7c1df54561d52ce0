//! What should the status say, now that the acts were tried?

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::plan::{Code, Event, Status, Verdict, Word};

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
        conditions.push(condition("Ready", word, &reason, &message));
    }
    let old: &[Value] = live
        .get("conditions")
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice);
    let events = announcements(status, &verdicts, old);
    for condition in &mut conditions {
        date(condition, old, generation, now);
    }

    let mut wanted = status.fields.clone();
    wanted.insert("conditions".to_owned(), Value::Array(conditions));
    wanted.insert("status".to_owned(), json!(word));
    wanted.insert("message".to_owned(), json!(message));
    let code = status.code.filter(|code| *code != Code::Keep);
    let is_said = wanted.iter().all(|(field, wanted)| match live.get(field) {
        Some(live) => live == wanted,
        None => wanted.is_null(),
    });
    (!is_said || code.is_some()).then_some(Report {
        status: wanted,
        code,
        events,
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
    json!({"type": kind, "status": status, "reason": reason, "message": message})
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
}
