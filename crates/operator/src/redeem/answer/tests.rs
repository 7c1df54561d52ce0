//! What does a hostile peer get past the reader?

use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use super::*;

struct Made {
    certificate: String,
    key: String,
}

fn made() -> Made {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new([])
        .unwrap()
        .self_signed(&key)
        .unwrap()
        .pem();
    Made {
        certificate,
        key: key.serialize_pem(),
    }
}

fn base64(text: &str) -> String {
    STANDARD.encode(text)
}

fn secret(made: &Made) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": "skupper-site-ca", "namespace": "kube-system", "labels": {"a": "b"}},
        "data": {
            "ca.crt": base64(&made.certificate),
            "tls.crt": base64(&made.certificate),
            "tls.key": base64(&made.key),
        },
    })
}

fn link(endpoints: &Value) -> Value {
    json!({
        "apiVersion": "skupper.io/v2alpha1", "kind": "Link",
        "metadata": {"name": "../../etc"},
        "spec": {"endpoints": endpoints, "tlsCredentials": "skupper-site-ca", "cost": 1},
    })
}

fn endpoint() -> Value {
    json!({"name": "inter-router", "host": "a.example", "port": "55671", "group": "skupper-router"})
}

fn yaml(documents: &[Value]) -> String {
    let text = |document| serde_saphyr::to_string(document).unwrap();
    documents.iter().fold(String::new(), |all, document| {
        all + "---
" + &text(document)
            + "
"
    })
}

fn good(made: &Made) -> [Value; 2] {
    [secret(made), link(&json!([endpoint()]))]
}

fn refusal(answer: &[u8]) -> String {
    match Received::parse("my-token", answer) {
        Ok(_) => panic!("it was taken"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_good_answer_is_taken_and_written_anew() {
    let made = made();
    let mut documents = good(&made);
    documents[0]["data"]["tls.key"] = json!(base64(&format!("# a note\n{}more", made.key)));
    documents[0]["data"]["extra"] = json!("AAAA");
    let received = Received::parse("my-token", yaml(&documents).as_bytes()).unwrap();
    assert_eq!(received.credential.key.trim(), made.key.trim());
    assert_eq!(
        received.credential.certificate.trim(),
        made.certificate.trim()
    );
    assert_eq!(received.credential.ca, received.credential.certificate);
    assert_eq!(received.links.len(), 1);
    assert_eq!(received.links[0].name, "my-token");
    assert_eq!(received.links[0].endpoints[0].host, "a.example");
}

#[test]
fn links_of_several_groups_are_numbered() {
    let [secret, link] = good(&made());
    let answer = yaml(&[secret, link.clone(), link]);
    let received = Received::parse("my-token", answer.as_bytes()).unwrap();
    let names: Vec<&str> = received
        .links
        .iter()
        .map(|link| link.name.as_str())
        .collect();
    assert_eq!(names, ["my-token-1", "my-token-2"]);
}

#[test]
fn what_go_writes_is_understood() {
    // Field order, a null timestamp, a status and an unquoted number, as upstream's server writes them.
    let made = made();
    let answer = format!(
        "---\napiVersion: v1\ndata:\n  ca.crt: {}\n  tls.crt: {}\n  tls.key: {}\nkind: Secret\nmetadata:\n  \
         creationTimestamp: null\n  name: my-token\ntype: kubernetes.io/tls\n---\napiVersion: \
         skupper.io/v2alpha1\nkind: Link\nmetadata:\n  creationTimestamp: null\n  name: my-token\nspec:\n  \
         endpoints:\n  - group: skupper-router-1\n    host: 10.0.0.1\n    name: inter-router\n    port: \"55671\"\n  \
         - group: skupper-router-1\n    host: 2001:db8::1\n    name: edge\n    port: \"45671\"\n  tlsCredentials: \
         my-token\nstatus: {{}}\n",
        base64(&made.certificate),
        base64(&made.certificate),
        base64(&made.key),
    );
    let received = Received::parse("my-token", answer.as_bytes()).unwrap();
    assert_eq!(received.links[0].endpoints.len(), 2);
}

#[test]
fn a_secret_that_is_no_credential_is_refused() {
    let (one, other) = (made(), made());
    let with = |change: &dyn Fn(&mut Value)| {
        let mut documents = good(&one);
        change(&mut documents[0]);
        refusal(yaml(&documents).as_bytes())
    };
    assert_eq!(
        with(&|secret| secret["data"]["tls.key"] = json!(base64(&other.key))),
        "the answer's Secret is not a credential: tls.key belongs to another certificate than tls.crt"
    );
    assert_eq!(
        with(&|secret| secret["type"] = json!("Opaque")),
        "the answer's Secret is not of type kubernetes.io/tls"
    );
    for file in ["ca.crt", "tls.crt", "tls.key"] {
        let wanted = format!("the answer's Secret has no usable {file}");
        assert_eq!(with(&|secret| secret["data"][file] = json!("")), wanted);
        assert_eq!(with(&|secret| secret["data"][file] = json!("%%%")), wanted);
        assert_eq!(
            with(&|secret| secret["data"][file] = json!(base64("junk"))),
            wanted
        );
        assert_eq!(
            with(&|secret| {
                secret["data"].as_object_mut().unwrap().remove(file);
            }),
            wanted
        );
    }
}

#[test]
fn anything_but_one_secret_and_some_links_is_refused() {
    let [secret, link] = good(&made());
    let of = |documents: &[Value]| refusal(yaml(documents).as_bytes());
    let no_links = "the answer holds no Link, or more than 8";
    assert_eq!(
        of(std::slice::from_ref(&link)),
        "the answer holds no Secret, or more than one"
    );
    assert_eq!(
        of(&[secret.clone(), secret.clone(), link.clone()]),
        "the answer holds no Secret, or more than one"
    );
    assert_eq!(of(std::slice::from_ref(&secret)), no_links);
    for kind in ["RoleBinding", "Site", "secret"] {
        let mut stranger = link.clone();
        stranger["kind"] = json!(kind);
        assert_eq!(
            of(&[secret.clone(), link.clone(), stranger]),
            "the answer holds something that is neither a Secret nor a Link"
        );
    }
    let mut disguised = secret.clone();
    disguised["apiVersion"] = json!("evil.example/v1");
    assert_eq!(
        of(&[disguised, link.clone()]),
        "the answer holds something that is neither a Secret nor a Link"
    );
    // More documents than any answer has.
    let many: Vec<Value> = std::iter::once(secret)
        .chain(std::iter::repeat_n(link, 9))
        .collect();
    assert_eq!(of(&many), "the answer is not YAML that is worth reading");
    assert_eq!(of(&[]), "the answer holds no Secret, or more than one");
}

#[test]
fn endpoints_are_hosts_and_ports() {
    let made = made();
    let with = |endpoints: Value| refusal(yaml(&[secret(&made), link(&endpoints)]).as_bytes());
    let count = "a Link of the answer has no endpoint, or more than 16";
    assert_eq!(with(json!([])), count);
    assert_eq!(with(json!(vec![endpoint(); 17])), count);
    let check =
        "a Link of the answer leads to something that is not a host and a port from 1 to 65535";
    for (field, bad) in [
        ("host", "a b"),
        ("host", ""),
        ("host", "a/../b"),
        ("host", "http://a"),
        ("host", "a:1"),
        ("host", "[::1]"),
        ("host", "1.2.3"),
        ("host", "a\nb"),
        ("host", "-a"),
        ("host", "ä"),
        ("port", "0"),
        ("port", "65536"),
        ("port", "-1"),
        ("port", "+1"),
        ("port", "1 "),
        ("port", ""),
        ("name", "normal"),
        ("name", ""),
        ("group", "a\"b"),
        ("group", "a/b"),
    ] {
        let mut endpoint = endpoint();
        endpoint[field] = json!(bad);
        assert_eq!(with(json!([endpoint])), check, "{field} {bad:?}");
    }
}

#[test]
fn what_is_made_to_hurt_a_reader_is_refused() {
    let made = made();
    let good = yaml(&good(&made));
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b]\nd: [*c,*c,*c,*c]\n";
    let not_yaml = "the answer is not YAML that is worth reading";
    let hostile: Vec<String> = vec![
        "{".to_owned(),
        "[".repeat(60_000),
        "- ".repeat(30_000),
        "---\n".repeat(16_000) + "a: b",
        bomb.to_owned(),
        format!("{bomb}---\n{good}"),
        good.replace("kind: Secret", "kind: Secret\nkind: Secret"),
        good.replace("kind: Secret", "kind: &x Secret"),
        good.replace("kind: Link", "<<: {kind: Link}"),
        "a: ".to_owned() + &"x".repeat(65_000),
        "? ".repeat(30_000),
        "just text".to_owned(),
        "42".to_owned(),
        "kind: [Secret]\napiVersion: v1".to_owned(),
        "kind: Secret\napiVersion: v1\ndata: [1]".to_owned(),
        "kind: Secret\napiVersion: v1\ndata: {tls.crt: {}}".to_owned(),
        "\u{0}\u{1}\u{2}".to_owned(),
    ];
    for answer in hostile {
        let start: String = answer.chars().take(40).collect();
        assert_eq!(refusal(answer.as_bytes()), not_yaml, "{start:?}");
    }
    // A tag that some readers obey is none to this one.
    assert_eq!(
        refusal(
            good.replace("kind: Link", "kind: !include /etc/passwd")
                .as_bytes()
        ),
        "the answer holds something that is neither a Secret nor a Link"
    );
    assert_eq!(refusal(b"\xff\xfe"), "the answer is not text");
    assert_eq!(refusal(&[0x1f, 0x8b, 8, 0]), "the answer is not text");
}

#[test]
fn nothing_of_the_answer_is_in_a_refusal() {
    let made = made();
    for (from, to) in [
        ("kubernetes.io/tls", "MARKER"),
        ("a.example", "MARKER/"),
        ("kind: Link", "kind: MARKER"),
        ("kind: Link", "kind: [MARKER"),
    ] {
        let text = refusal(yaml(&good(&made)).replace(from, to).as_bytes());
        assert!(!text.contains("MARKER"), "{text}");
    }
}
