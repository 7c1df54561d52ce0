//! Does a link stay up while the credentials behind it are renewed, deleted, rolled over, replaced or lost?

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde_json::{Value, json};
use spanwire_e2e::bed::Bed;
use spanwire_e2e::install::{DEPLOYMENT, NAMESPACE, is_rolled_out};
use spanwire_e2e::kubectl::{Kubectl, condition, has_condition};
use spanwire_e2e::namespace::Namespaces;
use spanwire_e2e::processes::{self, Connection, Process, ROUTER};
use spanwire_e2e::scenario::{self, FAULTLESS, Scenario};
use spanwire_e2e::scene::{self, Scene, ours, text};
use spanwire_e2e::{rest, tally, wait};

const CA: &str = "skupper-site-ca";
const SERVER: &str = "skupper-site-server";
/// How soon a leaf Secret is back that somebody deleted (`design.md` §5).
const BACK_WITHIN: Duration = Duration::from_secs(1);

#[test]
fn a_link_stays_up_while_its_server_certificate_is_renewed() -> Result<()> {
    linked("continuity-renewed", |pair| {
        let west = &pair.west;
        let before = west.get("secret", SERVER)?;
        let (ca, version) = (west.get("secret", CA)?, pair.version()?);
        ask(west, SERVER, "now")?;
        let after = west.wait("a new one", scene::WITHIN, ("secret", SERVER), |secret| {
            secret["data"]["tls.key"] != before["data"]["tls.key"]
        })?;
        ensure!(after["data"]["ca.crt"] == before["data"]["ca.crt"]);
        ensure!(west.get("secret", CA)?["data"] == ca["data"]);
        pair.has_left(&version)?;
        pair.never_broke()
    })
}

#[test]
fn a_link_stays_up_while_its_server_certificate_is_deleted() -> Result<()> {
    linked("continuity-deleted", |pair| {
        let west = &pair.west;
        let ca = west.get("secret", CA)?;
        let version = pair.version()?;
        west.leaf_comes_back(SERVER, BACK_WITHIN)?;
        ensure!(west.get("secret", CA)?["metadata"] == ca["metadata"]);
        pair.has_left(&version)?;
        pair.never_broke()
    })
}

/// Remote sites keep the CA that they were given, so the new one is worth nothing without what the old one says of it.
#[test]
fn a_ca_that_is_rolled_over_cuts_off_nobody() -> Result<()> {
    linked("continuity-rolled", |pair| {
        let west = &pair.west;
        let old = west.get("secret", CA)?;
        let remote = pair.credentials()?;
        let version = pair.version()?;
        let mark = west.bed.audit().mark()?;
        ask(west, CA, "now")?;
        let new = west.wait("a new CA", scene::WITHIN, ("secret", CA), |secret| {
            secret["data"]["tls.key"] != old["data"]["tls.key"]
        })?;
        // The first revision with the new key has the cross-certificate, and both roots.
        let [root, bridge] = &certificates(&new["data"]["tls.crt"])[..] else {
            anyhow::bail!("no cross-certificate beside the new key");
        };
        let old = certificates(&old["data"]["tls.crt"]).remove(0);
        ensure!(certificates(&new["data"]["ca.crt"]) == [root.clone(), old.clone()]);
        let server = west.wait("a new leaf", scene::WITHIN, ("secret", SERVER), |secret| {
            certificates(&secret["data"]["tls.crt"]).contains(bridge)
        })?;
        let roots = certificates(&server["data"]["ca.crt"]);
        ensure!(roots.contains(root) && roots.contains(&old));
        pair.has_left(&version)?;
        rest::reached(west.bed, &[&west.namespace, &pair.east.namespace])?;
        for secret in [CA, SERVER] {
            let writes = west.bed.audit().since(mark)?.into_iter().filter(|request| {
                let object = &request.object_ref;
                let is_it = object.namespace == west.namespace && object.name == secret;
                is_it && object.resource == "secrets" && request.is_write()
            });
            let writes: Vec<_> = writes.map(|request| request.to_string()).collect();
            ensure!(writes.len() == 1, "{writes:#?}");
        }
        pair.never_broke()?;

        // One that knows only the old CA dials anew.
        pair.restart_east()?;
        wait::until("the link to be up again", scene::WITHIN, || {
            let reports = tally::reports(&pair.east.kubectl, &pair.east.namespace)?;
            let mut links = reports.values().filter(|report| report.router.exits > 0);
            Ok(links
                .any(|report| report.links.values().any(|link| link.up))
                .then_some(()))
        })?;
        ensure!(
            pair.credentials()? == remote,
            "the other site got other credentials"
        );
        ensure!(certificates(&remote["ca.crt"]) == [old]);
        Ok(())
    })
}

#[test]
fn a_ca_that_its_user_replaces_is_told_of_and_healed_by_another_token() -> Result<()> {
    linked("continuity-replaced", |pair| {
        let (west, east) = (&pair.west, &pair.east);
        let version = pair.version()?;
        let old = certificates(&west.get("secret", CA)?["data"]["tls.crt"]).remove(0);
        let data = authority("a CA of their own")?;
        west.merge("secret", CA, &json!({"data": data}))?;
        let reason = "RemoteTrustBroken";
        let told = west.refused("certificate", SERVER, "RemoteTrust", reason)?;
        ensure!(told.contains("must redeem a new token"), "{told}");
        let new = certificates(&data["tls.crt"]).remove(0);
        let server = west.wait("a new leaf", scene::WITHIN, ("secret", SERVER), |secret| {
            names(secret, "a CA of their own")
        })?;
        let roots = certificates(&server["data"]["ca.crt"]);
        ensure!(roots.contains(&new) && roots.contains(&old));
        west.holds("certificate", SERVER, "Ready")?;
        ensure!(
            west.get("secret", CA)?["data"] == data,
            "what its user brought was touched"
        );
        pair.has_left(&version)?;
        pair.never_broke()?;

        // At the next connection the other site cannot verify us, and says so.
        pair.restart_east()?;
        let link = &pair.link;
        let told = east.refused("link", link, "Operational", reason)?;
        ensure!(told.contains("redeem a new token"), "{told}");
        east.delete("link", link)?;
        west.apply([ours("AccessGrant", "again", &json!({}))])?;
        let grant = west.holds("accessgrant", "again", "Ready")?;
        let grant = &grant["status"];
        let spec = json!({"url": grant["url"], "code": grant["code"], "ca": grant["ca"]});
        east.apply([ours("AccessToken", "again", &spec)])?;
        east.holds("accesstoken", "again", "Redeemed")?;
        east.holds("link", "again", "Operational").map(drop)
    })
}

#[test]
fn a_lost_ca_costs_no_link_and_is_restored_from_a_backup() -> Result<()> {
    linked("continuity-lost", |pair| {
        let west = &pair.west;
        let backup = west.get("secret", CA)?;
        let server = west.get("secret", SERVER)?;
        west.delete("secret", CA)?;
        let told = west.refused("certificate", CA, "Ready", "CaLost")?;
        ensure!(told.contains(&format!("secret \"{CA}\" is gone")), "{told}");
        rest::reached(west.bed, &[&west.namespace])?;
        ensure!(west.find("secret", CA)?.is_none(), "a CA was minted");
        ensure!(west.get("secret", SERVER)?["data"] == server["data"]);
        pair.never_broke()?;

        let mut restored = backup.clone();
        let metadata = restored["metadata"].as_object_mut().context("metadata")?;
        for field in [
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "managedFields",
        ] {
            metadata.remove(field);
        }
        west.apply([restored])?;
        west.holds("certificate", CA, "Ready")?;
        west.holds("certificate", SERVER, "Ready")?;
        rest::reached(west.bed, &[&west.namespace])?;
        ensure!(west.get("secret", CA)?["data"] == backup["data"]);
        ensure!(west.get("secret", SERVER)?["data"] == server["data"]);
        pair.never_broke()
    })
}

/// All of it as it happens by itself, where certificates live for 45 s: by an operator of its own.
#[test]
fn a_link_outlives_each_certificate_and_an_old_ca_is_dropped() -> Result<()> {
    let bed = Bed::shared()?;
    let scenario = Scenario::new(bed, "two-sites", "continuity-brief");
    let [one, other] = scenario.namespaces();
    let namespaces = Namespaces::make(bed, &[one, other, Brief::NAME])?;
    let _operator = Brief::start(bed, &[one, other])?;
    let (west, east) = (scene(&scenario.west)?, scene(&scenario.east)?);
    west.apply([ours("Site", "west", &json!({"linkAccess": "default"}))])?;
    east.apply([ours("Site", "east", &json!({}))])?;
    let site = west.holds("site", "west", "Ready")?;
    let ca = west.get("secret", CA)?;
    east.apply([json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "to-west"},
        "type": "kubernetes.io/tls",
        "data": credential(&ca["data"])?,
    })])?;
    let spec = json!({"endpoints": site["status"]["endpoints"], "tlsCredentials": "to-west"});
    east.apply([ours("Link", "to-west", &spec)])?;

    let pair = Pair::of(&scenario)?;
    let secret = |name: &'static str| west.get("secret", name);
    let (version, server) = (pair.version()?, secret(SERVER)?);
    pair.has_left(&version)?;
    ensure!(secret(SERVER)?["data"]["ca.crt"] == server["data"]["ca.crt"]);
    pair.never_broke()?;

    ask(&west, CA, "now")?;
    for many in [2, 1] {
        let version = pair.version()?;
        for name in [CA, SERVER] {
            let what = format!("{many} certificates in each file of {name}");
            west.wait(&what, scene::WITHIN, ("secret", name), |secret| {
                let file = |name: &str| certificates(&secret["data"][name]);
                file("ca.crt").len() == many && file("tls.crt").len() == many
            })?;
        }
        pair.has_left(&version)?;
        pair.never_broke()?;
    }
    ensure!(secret(CA)?["data"]["tls.key"] != ca["data"]["tls.key"]);
    namespaces.passed()
}

/// The test plays the load balancer; addresses come late, change, and are of several kinds.
#[test]
fn an_address_of_a_load_balancer_is_certified_before_it_is_published() -> Result<()> {
    scene::play("continuity-balancer", |scene| {
        let roles = json!([{"name": "inter-router"}, {"name": "edge"}]);
        let access = json!({
            "accessType": "loadbalancer",
            "generateTlsCredentials": true,
            "tlsCredentials": "outside",
            "roles": roles,
        });
        scene.apply([
            ours("Site", "west", &json!({})),
            ours("RouterAccess", "outside", &access),
        ])?;
        // Without an address the site runs; only what needs one waits.
        scene.holds("site", "west", "Running")?;
        let reason = "AwaitingAddress";
        let told = scene.refused("routeraccess", "outside", "Resolved", reason)?;
        ensure!(told.contains("\"outside\""), "{told}");

        for ingress in [
            json!([{"ip": "192.0.2.7"}]),
            json!([{"hostname": "lb.example"}]),
            json!([{"ip": "192.0.2.8"}, {"ip": "2001:db8::8"}]),
        ] {
            balance(scene, &ingress)?;
            let mut wanted = BTreeSet::new();
            for one in ingress.as_array().into_iter().flatten() {
                let host = one["ip"].as_str().or(one["hostname"].as_str());
                wanted.insert(host.context("a host")?.to_owned());
            }
            wait::until(&format!("{wanted:?} alone"), scene::WITHIN, || {
                // In this order: what is published now is in the certificate by then. (Of the addresses that are gone,
                // the certificate may take leave first.)
                let access = scene.get("routeraccess", "outside")?;
                let secret = scene.get("secret", "outside")?;
                let published = hosts(&access);
                for host in published.intersection(&wanted) {
                    ensure!(
                        names(&secret, host),
                        "{host} is published and not certified"
                    );
                }
                let is_done = published == wanted && has_condition(&access, "Ready");
                Ok(is_done.then_some(()))
            })?;
        }
        rest::reached(scene.bed, &[&scene.namespace]).map(drop)
    })
}

/// Says as the load balancer of the Service `outside` where it is reached.
fn balance(scene: &Scene, ingress: &Value) -> Result<()> {
    let patch = json!({"status": {"loadBalancer": {"ingress": ingress}}}).to_string();
    let service = ["patch", "service", "outside", "--subresource=status"];
    let patch = ["--type=merge", "--patch", &patch];
    scene.run(&[&service[..], &patch].concat()).map(drop)
}

fn hosts(access: &Value) -> BTreeSet<String> {
    let endpoints = access["status"]["endpoints"].as_array();
    let hosts = endpoints.into_iter().flatten();
    hosts
        .map(|endpoint| text(&endpoint["host"]).to_owned())
        .collect()
}

/// Two sites whose link is up, and the connections that it had at first.
struct Pair<'a> {
    scenario: &'a Scenario<'a>,
    west: Scene,
    east: Scene,
    link: String,
    /// Since when the link is up, as its condition tells.
    since: Value,
    router: Process,
    /// The port that the link dials.
    port: u16,
    open: BTreeSet<Connection>,
}

fn linked(prefix: &str, test: impl FnOnce(&Pair<'_>) -> Result<()>) -> Result<()> {
    scenario::linked(prefix, |_, scenario| test(&Pair::of(scenario)?))
}

impl<'a> Pair<'a> {
    /// The sites of a scenario, once their link is up.
    fn of(scenario: &'a Scenario<'a>) -> Result<Self> {
        let link = scenario.is_up()?;
        let endpoints = link["spec"]["endpoints"].as_array();
        let mut endpoints = endpoints.into_iter().flatten();
        let endpoint = endpoints.find(|endpoint| endpoint["name"] == "inter-router");
        let mut pair = Self {
            scenario,
            west: scene(&scenario.west)?,
            east: scene(&scenario.east)?,
            link: text(&link["metadata"]["name"]).to_owned(),
            since: since(&link)?,
            router: processes::of_pod(&scenario.router_pod(&scenario.east)?, &ROUTER)?,
            port: text(&endpoint.context("an endpoint")?["port"]).parse()?,
            open: BTreeSet::new(),
        };
        pair.open = pair.connections();
        ensure!(!pair.open.is_empty(), "the link has no connection");
        Ok(pair)
    }

    /// Fails unless the link has the connections that it had at first, and was never said to be down.
    fn never_broke(&self) -> Result<()> {
        let open = self.connections();
        ensure!(
            self.open.is_subset(&open),
            "{:?} became {open:?}",
            self.open
        );
        let link = self.east.get("link", &self.link)?;
        ensure!(since(&link)? == self.since, "{}", link["status"]);
        let tally = self.scenario.tally()?;
        ensure!(tally == FAULTLESS, "{tally:?}");
        Ok(())
    }

    fn connections(&self) -> BTreeSet<Connection> {
        let mut open = self.router.connections();
        open.retain(|(_, theirs)| *theirs == self.port);
        open
    }

    /// Which version of the server's credential west's router uses.
    fn version(&self) -> Result<String> {
        let reports = tally::reports(&self.west.kubectl, &self.west.namespace)?;
        let report = reports.values().next().context("a report")?;
        let version = report.credentials.get(SERVER);
        version.cloned().context("no version of the server's")
    }

    /// Waits until west's router uses another version, and refuses nothing.
    fn has_left(&self, version: &str) -> Result<()> {
        wait::until("another version to be used", scene::WITHIN, || {
            let reports = tally::reports(&self.west.kubectl, &self.west.namespace)?;
            let is_done = reports.values().all(|report| {
                let used = report.credentials.get(SERVER);
                used.is_some_and(|used| used != version) && report.refused.is_empty()
            });
            Ok(is_done.then_some(()))
        })
    }

    /// What east got for its token.
    fn credentials(&self) -> Result<Value> {
        let link = self.east.get("link", &self.link)?;
        let secret = text(&link["spec"]["tlsCredentials"]);
        Ok(self.east.get("secret", secret)?["data"].clone())
    }

    /// Ends the router that dials, and waits until the adaptor has seen it; the kubelet starts it again.
    fn restart_east(&self) -> Result<()> {
        self.router.kill()?;
        wait::until("the router to be gone", scene::WITHIN, || {
            let reports = tally::reports(&self.east.kubectl, &self.east.namespace)?;
            let is_seen = reports.values().any(|report| report.router.exits > 0);
            Ok(is_seen.then_some(()))
        })
    }
}

fn scene(namespace: &str) -> Result<Scene> {
    let bed = Bed::shared()?;
    Ok(Scene {
        bed,
        kubectl: bed.kubectl(),
        namespace: namespace.to_owned(),
    })
}

/// Asks for a new key, as a person would.
fn ask(scene: &Scene, certificate: &str, value: &str) -> Result<()> {
    let wish = format!("internal.spanwire.io/renew={value}");
    scene
        .run(&["annotate", "certificate", certificate, &wish])
        .map(drop)
}

fn since(link: &Value) -> Result<Value> {
    let told = condition(link, "Operational").filter(|told| told["status"] == "True");
    Ok(told.context("the link is not up")?["lastTransitionTime"].clone())
}

/// The certificates of a file of a Secret, in DER.
fn certificates(file: &Value) -> Vec<Vec<u8>> {
    let file = STANDARD.decode(text(file)).unwrap_or_default();
    let file = String::from_utf8_lossy(&file).replace('\n', "");
    let bodies = file.split("-----").filter_map(|part| {
        let is_body = !part.is_empty() && !part.contains(' ');
        is_body.then(|| STANDARD.decode(part).ok()).flatten()
    });
    bodies.collect()
}

/// Whether a name, a host's or the CA's, stands in the certificate of a Secret; addresses stand there as text too, as
/// the router wants it.
fn names(secret: &Value, name: &str) -> bool {
    let leaf = certificates(&secret["data"]["tls.crt"]).into_iter().next();
    leaf.is_some_and(|leaf| leaf.windows(name.len()).any(|part| part == name.as_bytes()))
}

/// A second operator, for some namespaces alone, whose certificates live for 45 s. It lives in a namespace of its
/// own, and loses its rights when this is dropped.
struct Brief(Kubectl);

impl Brief {
    const NAME: &str = "continuity-operator";

    fn start(bed: &Bed, namespaces: &[&str]) -> Result<Self> {
        let kubectl = bed.kubectl();
        let control = |namespace: &&str| {
            json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "skupper", "namespace": namespace},
                "data": {"controller": format!("{0}/{0}", Self::NAME)},
            })
        };
        let mut objects: Vec<Value> = namespaces.iter().map(control).collect();
        objects.extend(Self::rights(&kubectl)?);
        objects.push(json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": Self::NAME, "namespace": Self::NAME},
            "spec": Self::spec(&kubectl)?,
        }));
        let brief = Self(kubectl);
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        brief.0.apply(&list.to_string(), &[])?;
        let args = ["deployment", Self::NAME, "--namespace", Self::NAME];
        let what = "the second operator to be ready";
        let ready = brief.0.wait_for(what, scene::WITHIN, &args, is_rolled_out);
        ready.map(|_| brief)
    }

    /// Those of the first operator.
    fn rights(kubectl: &Kubectl) -> Result<[Value; 4]> {
        let role = ["role", DEPLOYMENT, "--namespace", NAMESPACE];
        let role = kubectl.find(&role)?.context("the operator's Role")?;
        let group = "rbac.authorization.k8s.io";
        let version = format!("{group}/v1");
        let us = json!({"name": Self::NAME, "namespace": Self::NAME});
        let binding = |kind: &str, name: &str, metadata: &Value| {
            let subject =
                json!({"kind": "ServiceAccount", "name": Self::NAME, "namespace": Self::NAME});
            json!({
                "apiVersion": version,
                "kind": format!("{kind}Binding"),
                "metadata": metadata,
                "roleRef": {"apiGroup": group, "kind": kind, "name": name},
                "subjects": [subject],
            })
        };
        Ok([
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": us}),
            json!({"apiVersion": version, "kind": "Role", "metadata": us, "rules": role["rules"]}),
            binding("Role", Self::NAME, &us),
            binding("ClusterRole", DEPLOYMENT, &json!({"name": Self::NAME})),
        ])
    }

    /// That of the first operator, with less time.
    fn spec(kubectl: &Kubectl) -> Result<Value> {
        let model = kubectl.find(&["deployment", DEPLOYMENT, "--namespace", NAMESPACE])?;
        let mut spec = model.context("the operator")?["spec"].clone();
        let labels = json!({"app.kubernetes.io/name": Self::NAME});
        spec["selector"] = json!({"matchLabels": labels});
        spec["template"]["metadata"] = json!({"labels": labels});
        let pod = &mut spec["template"]["spec"];
        pod["serviceAccountName"] = json!(Self::NAME);
        pod["serviceAccount"] = json!(Self::NAME);
        let args = pod["containers"][0]["args"].as_array_mut();
        let name = format!("--name={}", Self::NAME);
        let more = [
            &name,
            "--require-explicit-control",
            "--enable-grants=false",
            "--certificate-lifetime=45s",
            "--ca-lifetime=1h",
        ];
        args.context("arguments")?.extend(more.map(Value::from));
        Ok(spec)
    }
}

impl Drop for Brief {
    fn drop(&mut self) {
        let _ = self.0.run(&["delete", "clusterrolebinding", Self::NAME]);
    }
}

/// What a remote site has got from a CA, as the data of a Secret. It lives for ever.
fn credential(ca: &Value) -> Result<Value> {
    let file = |name: &str| -> Result<String> {
        Ok(String::from_utf8(STANDARD.decode(text(&ca[name]))?)?)
    };
    let issuer = KeyPair::from_pem(&file("tls.key")?)?;
    let issuer = Issuer::from_ca_cert_pem(&file("tls.crt")?, issuer)?;
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name.push(DnType::CommonName, "remote");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(json!({
        "ca.crt": ca["ca.crt"],
        "tls.crt": STANDARD.encode(certificate.pem()),
        "tls.key": STANDARD.encode(key.serialize_pem()),
    }))
}

/// What somebody makes who has a CA of their own, as the data of a Secret.
fn authority(subject: &str) -> Result<Value> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name.push(DnType::CommonName, subject);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(1));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    let certificate = STANDARD.encode(params.self_signed(&key)?.pem());
    Ok(json!({
        "ca.crt": certificate,
        "tls.crt": certificate,
        "tls.key": STANDARD.encode(key.serialize_pem()),
    }))
}
