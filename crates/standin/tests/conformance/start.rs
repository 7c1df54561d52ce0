//! Starting, stopping, and everything that a router dies of.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::link::profile;
use crate::pki::{Ca, Leaf};
use crate::program::{Program, free_port, get, is_open, programs};

/// A profile entity over the files in `folder`.
fn ssl_profile(folder: &Path) -> Value {
    let mut attributes = profile(&folder.display().to_string());
    attributes["name"] = "server".into();
    json!(["sslProfile", attributes])
}

fn listener() -> Value {
    json!(["listener", {"name": "inter-router", "role": "inter-router", "host": "127.0.0.1",
        "port": free_port(), "sslProfile": "server", "saslMechanisms": "EXTERNAL",
        "authenticatePeer": true}])
}

fn connector() -> Value {
    json!(["connector", {"name": "to-a", "role": "inter-router", "host": "127.0.0.1",
        "port": free_port(), "sslProfile": "server"}])
}

/// Starts with good files that `spoil` has spoiled, and some user of the profile.
fn dies(program: &Program, user: Value, spoil: impl FnOnce(&Path), reason: &str) {
    let mut folder = String::new();
    let (status, log) = program.fail_with(|dir, entities| {
        let files = dir.join("server");
        Ca::new("ca").issue(&files, "server", Leaf::Good);
        spoil(&files);
        folder = files.display().to_string();
        entities.extend([ssl_profile(&files), user]);
    });
    let reason = reason.replace("<dir>", &folder);
    assert_eq!(status.code(), Some(1), "{reason}\n{log}");
    let wanted = format!("ROUTER (critical) Router start-up failed: Python: CError: {reason}");
    assert!(log.contains(&wanted), "wanted: {wanted}\n{log}");
}

#[tokio::test]
async fn it_dies_of_each_fault_in_the_files_of_a_listener() {
    const CA: &str =
        "Configuration: Failed to configure TLS caCertFile '<dir>/ca.crt' from sslProfile 'server'";
    const CERTIFICATE: &str =
        "Configuration: Failed to configure TLS certFile '<dir>/tls.crt' from sslProfile 'server'";
    for program in programs() {
        let remove =
            |name: &'static str| move |dir: &Path| fs::remove_file(dir.join(name)).unwrap();
        let write = |name: &'static str, text: &'static str| {
            move |dir: &Path| fs::write(dir.join(name), text).unwrap()
        };
        let of_another = |dir: &Path| {
            Ca::new("other").issue(&dir.join("other"), "other", Leaf::Good);
            fs::copy(dir.join("other/tls.key"), dir.join("tls.key")).unwrap();
        };
        dies(&program, listener(), remove("ca.crt"), CA);
        dies(&program, listener(), write("ca.crt", ""), CA);
        dies(&program, listener(), write("ca.crt", "no certificate"), CA);
        dies(
            &program,
            listener(),
            |dir| fs::remove_dir_all(dir).unwrap(),
            CA,
        );
        dies(&program, listener(), remove("tls.crt"), CERTIFICATE);
        dies(&program, listener(), write("tls.crt", ""), CERTIFICATE);
        dies(
            &program,
            listener(),
            write("tls.crt", "no certificate"),
            CERTIFICATE,
        );
        dies(&program, listener(), remove("tls.key"), CERTIFICATE);
        dies(&program, listener(), write("tls.key", ""), CERTIFICATE);
        dies(&program, listener(), of_another, CERTIFICATE);
    }
}

#[tokio::test]
async fn it_dies_of_missing_files_of_a_connector_and_of_tcp_services() {
    let gone = |dir: &Path| fs::remove_dir_all(dir).unwrap();
    for program in programs() {
        dies(
            &program,
            connector(),
            gone,
            "Configuration: Failed to configure TLS caCertFile '<dir>/ca.crt' from sslProfile 'server'",
        );
        for kind in ["tcpListener", "tcpConnector"] {
            let service = json!([kind, {"name": "service", "host": "127.0.0.1",
                "port": free_port(), "address": "backend", "sslProfile": "server"}]);
            dies(
                &program,
                service,
                gone,
                "Configuration: Failed to configure TLS caCertFile <dir>/ca.crt for sslProfile 'server': (-1)",
            );
        }
    }
}

#[tokio::test]
async fn it_dies_of_a_profile_that_is_not_there_or_names_too_little() {
    for program in programs() {
        let dies_of = |entities: Vec<Value>, reason: &str| {
            let (status, log) = program.fail_with(|dir, all| {
                Ca::new("ca").issue(&dir.join("server"), "server", Leaf::Good);
                let text = Value::Array(entities).to_string();
                let text = text.replace("<dir>", &dir.join("server").display().to_string());
                all.extend(serde_json::from_str::<Vec<Value>>(&text).unwrap());
            });
            assert_eq!(status.code(), Some(1), "{reason}\n{log}");
            let wanted = format!("Router start-up failed: Python: CError: {reason}");
            assert!(log.contains(&wanted), "wanted: {wanted}\n{log}");
        };
        dies_of(vec![listener()], "Not found: sslProfile 'server' not found");
        dies_of(
            vec![connector()],
            "Not found: sslProfile 'server' not found",
        );
        let certificate = json!({"name": "server", "certFile": "<dir>/tls.crt",
            "privateKeyFile": "<dir>/tls.key"});
        dies_of(
            vec![json!(["sslProfile", certificate]), connector()],
            "Configuration: Connector requires a CA certificate (sslProfile: server)",
        );
        dies_of(
            vec![json!(["sslProfile", certificate]), listener()],
            "Configuration: Listener requires a CA for peer authentication (sslProfile: server)",
        );
        dies_of(
            vec![
                json!(["sslProfile", {"name": "server", "caCertFile": "<dir>/ca.crt"}]),
                listener(),
            ],
            "Configuration: Listener requires a self-identifying certificate (sslProfile: server)",
        );
        for (attribute, value, word) in [
            ("protocols", "TLSv9", "Protocols"),
            ("ciphers", "NOPE", "Ciphers"),
        ] {
            let mut attributes = profile("<dir>");
            attributes["name"] = "server".into();
            attributes[attribute] = value.into();
            dies_of(
                vec![json!(["sslProfile", attributes]), listener()],
                &format!("Configuration: Failed to configure TLS {word} '{value}'"),
            );
        }
    }
}

#[tokio::test]
async fn an_expired_certificate_does_not_stop_it() {
    for program in programs() {
        program.start_with("site-a", "interior", |dir, entities| {
            let files = dir.join("server");
            Ca::new("ca").issue(&files, "server", Leaf::Expired);
            entities.extend([ssl_profile(&files), listener()]);
        });
    }
}

#[tokio::test]
async fn files_of_a_profile_that_nobody_uses_are_not_opened() {
    for program in programs() {
        program.start_with("site-a", "interior", |dir, entities| {
            entities.push(ssl_profile(&dir.join("nowhere")));
        });
    }
}

#[tokio::test]
async fn it_dies_of_a_configuration_that_it_does_not_understand() {
    for program in programs() {
        let entity = |text: &str| format!("[\n{text}\n]");
        for (text, reason) in [
            (String::new(), "Configuration file was empty"),
            (
                "[\n[\"router\", {\"id\": \"a\"}],\n oops\n]".to_owned(),
                "line 5 column 2",
            ),
            (
                entity(r#"["nonsense", {}]"#),
                "No such entity type 'io.skupper.router.nonsense'",
            ),
            (
                entity(r#"["router", {"nonsense": 1}]"#),
                "Unknown attribute 'nonsense'",
            ),
            (
                entity(r#"["router", {"id": "x-${HOSTNAME}"}]"#),
                "Router ID \"x-${HOSTNAME}\" containes at least one illegal character (\"|$\").",
            ),
            (
                entity(r#"["listener", {"name": "x", "port": 1}], ["sslProfile", {"name": "x"}]"#),
                "duplicates unique attribute 'name'",
            ),
            (
                entity(
                    r#"["log", {"module": "SERVER", "enable": "info+"}],
                       ["log", {"module": "SERVER", "enable": "info+"}]"#,
                ),
                "Router start-up failed",
            ),
            (
                entity(r#"["log", {"module": "SERVER", "enable": "shout"}]"#),
                "Router start-up failed",
            ),
        ] {
            let (status, log) = program.fail_on(&text);
            assert_eq!(status.code(), Some(1), "{text}\n{log}");
            assert!(log.contains("Router start-up failed: "), "{text}\n{log}");
            assert!(log.contains(reason), "wanted: {reason}\n{text}\n{log}");
        }
    }
}

#[tokio::test]
async fn an_edge_router_has_no_listener_for_other_routers() {
    for program in programs() {
        let text = json!([
            ["router", {"id": "a", "mode": "edge"}],
            ["listener", {"role": "inter-router", "host": "127.0.0.1", "port": free_port()}],
        ]);
        let (status, log) = program.fail_on(&text.to_string());
        assert_eq!(status.code(), Some(1), "{log}");
        let wanted = "role='inter-router' only allowed with router mode='interior'";
        assert!(log.contains(wanted), "{log}");
    }
}

#[tokio::test]
async fn it_is_operational_only_with_the_whole_configuration() {
    for program in programs() {
        let mut router = program.start("site-a");
        let page = get(router.http, "/healthz").unwrap();
        assert!(
            page.starts_with("HTTP/1.1 200") && page.ends_with("OK\n"),
            "{page}"
        );
        assert!(
            get(router.http, "/metrics")
                .unwrap()
                .starts_with("HTTP/1.1 200")
        );
        assert!(
            get(router.http, "/readyz")
                .unwrap()
                .starts_with("HTTP/1.1 404")
        );
        assert!(
            router
                .log()
                .contains("SERVER (info) Operational, 4 Threads Running")
        );
        let begun = Instant::now();
        router.signal("TERM");
        assert_eq!(router.exit_status().code(), Some(0));
        assert!(begun.elapsed() < Duration::from_secs(2));
    }
}

#[tokio::test]
async fn a_taken_http_port_crashes_it() {
    for program in programs() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let (status, log) = program.fail_with(|_, entities| {
            entities.push(
                json!(["listener", {"name": "second", "host": "127.0.0.1", "port": port,
                "http": true, "httpRootDir": "disabled"}]),
            );
        });
        assert!(
            status.code() == Some(139) || status.signal() == Some(11),
            "{status}\n{log}"
        );
    }
}

#[tokio::test]
async fn only_the_first_listener_needs_its_port() {
    for program in programs() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let busy = json!(["listener", {"name": "busy", "host": "127.0.0.1", "port": port}]);

        let (status, log) = program.fail_with(|_, entities| {
            entities.insert(0, busy.clone());
        });
        assert_eq!(status.code(), Some(1), "{log}");
        let wanted =
            format!("SERVER (critical) Shutting down, required listener failed 127.0.0.1:{port}");
        assert!(log.contains(&wanted), "{log}");

        let router = program.start_with("site-a", "interior", |_, e| e.push(busy.clone()));
        let wanted = format!("SERVER (error) Listener error on 127.0.0.1:{port}: ");
        assert!(router.log().contains(&wanted), "{}", router.log());

        program.start_with("site-a", "interior", |_, entities| {
            let connector = json!({"name": "out", "host": "127.0.0.1", "port": free_port()});
            entities.insert(0, busy.clone());
            entities.push(json!(["connector", connector]));
        });
    }
}

#[tokio::test]
async fn a_listener_without_a_host_listens_everywhere() {
    for program in programs() {
        let port = free_port();
        let router = program.start_with("site-a", "interior", |_, entities| {
            entities.push(json!(["listener", {"name": "everywhere", "port": port}]));
        });
        assert!(is_open(port), "{}", router.log());
    }
}

/// The image's start script, which has no counterpart in a router binary.
#[tokio::test]
async fn the_launcher_expands_variables_in_a_copy() {
    let folder = tempfile::TempDir::new().unwrap();
    let source = folder.path().join("bootstrap.json");
    let (amqp, http) = (free_port(), free_port());
    let entities = crate::program::bootstrap("site-a-${HOSTNAME}", "interior", amqp, http);
    fs::write(&source, Value::Array(entities).to_string()).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_spanwire-standin"))
        .env("QDROUTERD_CONF", &source)
        .env("TMPDIR", folder.path())
        .env("HOSTNAME", "pod-1")
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while get(http, "/healthz").is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let nodes = crate::client::Client::open(amqp)
        .await
        .query("router")
        .await;
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(nodes[0]["id"], "site-a-pod-1");
    assert!(
        fs::read_to_string(&source).unwrap().contains("${HOSTNAME}"),
        "the source stays"
    );
}

/// So that a real router binary can stand in the same image.
#[tokio::test]
async fn the_launcher_hands_the_copy_to_another_program() {
    let folder = tempfile::TempDir::new().unwrap();
    let source = folder.path().join("bootstrap.json");
    fs::write(&source, "id ${HOSTNAME}").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_spanwire-standin"))
        .args(["launch", "--", "/bin/echo", "-I", "/lib"])
        .env("QDROUTERD_CONF", &source)
        .env("TMPDIR", folder.path())
        .env("HOSTNAME", "pod-1")
        .output()
        .unwrap();
    let copy = folder.path().join("skrouterd.json");
    let wanted = format!("-I /lib -c {}\n", copy.display());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), wanted);
    assert_eq!(fs::read_to_string(copy).unwrap(), "id pod-1");
}
