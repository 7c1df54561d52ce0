//! Did two runs end alike? What is in a namespace, without what chance, time and Kubernetes itself put there.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use regex::{Captures, Regex};
use serde_json::{Map, Value};

use crate::census::{self, RESOURCES};
use crate::kubectl::{Kubectl, text};
use crate::reader;

/// What Kubernetes makes of what we made.
const MADE_OF_OURS: [&str; 3] = ["ReplicaSet", "Pod", "EndpointSlice"];
/// Kinds whose status is Kubernetes' own, and their `metadata.generation` with it.
const TOLD_BY_KUBERNETES: [&str; 2] = ["Deployment", "Service"];
/// Fields of metadata that tell when, not what.
const OF_THEIR_TIME: [&str; 4] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "managedFields",
];
/// Fields whose value is chance, wherever they are.
const CHANCE: [&str; 4] = ["clusterIP", "clusterIPs", "code", "fingerprint"];

/// What stands for a time, a pod, or a port that is given (a test's own, or a node's).
static GIVEN: LazyLock<[(Regex, &str); 3]> = LazyLock::new(|| {
    [
        (
            r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)",
            "<time>",
        ),
        (
            r"\b(skupper-router(-2)?)-[a-z0-9]{6,10}-[a-z0-9]{5}\b",
            "<pod of $1>",
        ),
        (r"\b(2\d|3[0-2])\d{3}\b", "<port>"),
    ]
    .map(|(pattern, stands_for)| (regex(pattern), stands_for))
});
/// Certificates, keys and digests: others in each run, but which of them are the same is not.
static MADE: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"(?s)-----BEGIN ([A-Z ]+)-----.*?-----END [A-Z ]+-----|\b[0-9a-f]{8,}\b")
});
static UID: LazyLock<Regex> =
    LazyLock::new(|| regex(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"));

fn regex(pattern: &str) -> Regex {
    match Regex::new(pattern) {
        Ok(regex) => regex,
        Err(error) => unreachable!("{error}"),
    }
}

/// The objects of a namespace: `Kind/name` → the object.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Snapshot(BTreeMap<String, Value>);

impl Snapshot {
    /// Reads what is in `namespace` now. `others` are uids of objects elsewhere, and what stands for them.
    pub fn take(kubectl: &Kubectl, namespace: &str, others: &[(String, String)]) -> Result<Self> {
        let mut objects = reader::objects(kubectl, namespace, &RESOURCES)?;
        objects.retain(|object| {
            !census::is_given(object) && !MADE_OF_OURS.contains(&text(&object["kind"]))
        });
        let uids = objects.iter().map(|object| {
            let uid = text(&object["metadata"]["uid"]).to_owned();
            (uid, format!("<uid of {}>", name(object)))
        });
        let mut chance = Chance {
            namespace,
            uids: uids.chain(others.iter().cloned()).collect(),
            made: HashMap::new(),
        };
        objects.sort_by_cached_key(name);
        let named = objects.into_iter().map(|object| {
            let name = name(&object);
            (name, chance.without(object))
        });
        Ok(Self(named.collect()))
    }

    /// Whether there is an object, by kind and name.
    pub fn has(&self, object: &str) -> bool {
        self.0.contains_key(object)
    }

    /// What is other here than there, a line each.
    pub fn differences(&self, there: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        let names = self.0.keys().chain(there.0.keys());
        for name in names.collect::<std::collections::BTreeSet<_>>() {
            match (self.0.get(name), there.0.get(name)) {
                (Some(_), None) => lines.push(format!("{name} is too much")),
                (None, Some(_)) => lines.push(format!("{name} is missing")),
                (Some(here), Some(there)) => compare(name, here, there, &mut lines),
                (None, None) => {}
            }
        }
        lines
    }
}

/// What was left to chance in one run.
struct Chance<'a> {
    namespace: &'a str,
    /// Uid → what stands for it.
    uids: BTreeMap<String, String>,
    /// Certificates, keys and digests, by the order in which they were met.
    made: HashMap<String, usize>,
}

impl Chance<'_> {
    fn without(&mut self, mut object: Value) -> Value {
        let kind = text(&object["kind"]).to_owned();
        let is_told_by_kubernetes = TOLD_BY_KUBERNETES.contains(&kind.as_str());
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.retain(|field, _| !OF_THEIR_TIME.contains(&field.as_str()));
            if is_told_by_kubernetes {
                metadata.remove("generation");
            }
        }
        if is_told_by_kubernetes && let Some(object) = object.as_object_mut() {
            object.remove("status");
        }
        if kind == "Secret"
            && let Some(data) = object["data"].as_object_mut()
        {
            for file in data.values_mut() {
                let bytes = STANDARD.decode(text(file)).unwrap_or_default();
                *file = Value::String(String::from_utf8_lossy(&bytes).into_owned());
            }
        }
        self.value(object)
    }

    fn value(&mut self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Number(number) => match self.text(&number.to_string()) {
                text if text == number.to_string() => Value::Number(number),
                text => Value::String(text),
            },
            Value::Array(all) => all.into_iter().map(|one| self.value(one)).collect(),
            Value::Object(fields) => {
                let fields = fields.into_iter().map(|(field, value)| {
                    let value = if CHANCE.contains(&field.as_str()) {
                        Value::String(format!("<{field}>"))
                    } else {
                        self.value(value)
                    };
                    (self.text(&field), value)
                });
                Value::Object(fields.collect::<Map<_, _>>())
            }
            other => other,
        }
    }

    fn text(&mut self, text: &str) -> String {
        let known = |found: &Captures<'_>| match self.uids.get(&found[0]) {
            Some(stands_for) => stands_for.clone(),
            // Nobody's that is there: this is no chance.
            None => "<unknown uid>".to_owned(),
        };
        let text = UID.replace_all(text, known);
        let mut text = text.replace(self.namespace, "<namespace>");
        for (pattern, stands_for) in &*GIVEN {
            text = pattern.replace_all(&text, *stands_for).into_owned();
        }
        let number = |found: &Captures<'_>| {
            let next = self.made.len();
            let number = self.made.entry(found[0].to_owned()).or_insert(next);
            let label = found.get(1).map_or("digest", |label| label.as_str());
            format!("<{label} {number}>")
        };
        MADE.replace_all(&text, number).into_owned()
    }
}

fn compare(place: &str, here: &Value, there: &Value, lines: &mut Vec<String>) {
    match (here, there) {
        (Value::Object(here), Value::Object(there)) => {
            let fields = here.keys().chain(there.keys());
            for field in fields.collect::<std::collections::BTreeSet<_>>() {
                let of = |object: &Map<String, Value>| object.get(field).cloned();
                compare(
                    &format!("{place}.{field}"),
                    &of(here).unwrap_or_default(),
                    &of(there).unwrap_or_default(),
                    lines,
                );
            }
        }
        (Value::Array(here), Value::Array(there)) if here.len() == there.len() => {
            for (number, (here, there)) in here.iter().zip(there).enumerate() {
                compare(&format!("{place}[{number}]"), here, there, lines);
            }
        }
        _ if here == there => {}
        _ => lines.push(format!("{place} is {here}, not {there}")),
    }
}

fn name(object: &Value) -> String {
    format!(
        "{}/{}",
        text(&object["kind"]),
        text(&object["metadata"]["name"])
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn snapshot(namespace: &str, uid: &str, owner: &str, time: &str, key: &str) -> Snapshot {
        let object = json!({
            "kind": "Secret",
            "metadata": {
                "name": "ca", "namespace": namespace, "uid": uid, "resourceVersion": "7",
                "ownerReferences": [{"uid": owner}],
            },
            "data": {"tls.key": STANDARD.encode(key)},
            "status": {"since": time, "url": format!("https://127.0.0.1:30123/{owner}")},
        });
        let mut chance = Chance {
            namespace,
            uids: BTreeMap::from([(owner.to_owned(), "<uid of Site/west>".to_owned())]),
            made: HashMap::new(),
        };
        Snapshot(BTreeMap::from([(
            "Secret/ca".to_owned(),
            chance.without(object),
        )]))
    }

    const A: &str = "6e2e2b83-24bc-9e99-ad0d-ec7145924258";
    const B: &str = "9812ff71-7d4e-4628-b3d9-45b9e32eba87";
    const KEYS: [&str; 2] = [
        "-----BEGIN PRIVATE KEY-----\na\n-----END PRIVATE KEY-----\n",
        "-----BEGIN PRIVATE KEY-----\nb\n-----END PRIVATE KEY-----\n",
    ];

    #[test]
    fn chance_and_time_make_no_difference() {
        let [here, there] = [
            snapshot("w1-a", A, B, "2026-12-01T09:00:00Z", KEYS[0]),
            snapshot("w1-b", B, A, "2026-12-01T09:00:01.5Z", KEYS[1]),
        ];
        assert_eq!(here.differences(&there), Vec::<String>::new());
    }

    #[test]
    fn another_owner_and_a_lost_key_are_differences() {
        let good = snapshot("w1-a", A, B, "2026-12-01T09:00:00Z", KEYS[0]);
        let mut orphan = good.clone();
        orphan.0.get_mut("Secret/ca").unwrap()["metadata"]["ownerReferences"][0]["uid"] =
            json!("<unknown uid>");
        assert_eq!(orphan.differences(&good).len(), 1);
        let empty = snapshot("w1-a", A, B, "2026-12-01T09:00:00Z", "");
        assert_eq!(
            empty.differences(&good),
            [r#"Secret/ca.data.tls.key is "", not "<PRIVATE KEY 0>\n""#]
        );
        assert_eq!(
            Snapshot::default().differences(&good),
            ["Secret/ca is missing"]
        );
    }
}
