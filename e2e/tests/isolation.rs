//! What does a bad credential cost? The one object that names it, which says what is wrong with it, and nobody else
//! anything.
//!
//! Each way to be bad × each place to name a credential, all at once beside a link that is up.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use spanwire_e2e::bed::Bed;
use spanwire_e2e::credential::{Authority, Fault, Holder};
use spanwire_e2e::kubectl::condition;
use spanwire_e2e::processes::{self, Connection, Process, ROUTER};
use spanwire_e2e::scenario::{self, FAULTLESS, Scenario};
use spanwire_e2e::scene::{self, Scene, ours, text};
use spanwire_e2e::{rest, tally, wait};

/// The Secret of a CA that is good.
const USERS_CA: &str = "users-ca";
const HEALTHY_PORT: u16 = 55690;

#[test]
fn one_bad_credential_costs_one_entity() -> Result<()> {
    let cells = cells();
    ensure!(cells.len() == 41, "{} cells", cells.len());
    scenario::linked("isolation", |bed, scenario| {
        let authority = Authority::new("the user's CA")?;
        let east = scene(bed, &scenario.east)?;
        let healthy = Healthy::settle(&east, scenario, &authority)?;

        let mut objects = Vec::new();
        for cell in &cells {
            objects.extend(cell.secret(&authority, &east.namespace, Some(cell.fault))?);
            objects.push(cell.object());
        }
        east.apply(objects)?;
        for cell in &cells {
            cell.is_told(&east)?;
        }
        // Nor does anybody try again and again what cannot be.
        rest::reached(bed, &[&east.namespace])?;
        for cell in &cells {
            let is_live = cell.is_live(&east, healthy.router)?;
            ensure!(
                is_live == cell.is_live_all_the_same(),
                "{}: {is_live}",
                cell.name
            );
        }
        healthy.is_as_before(&east, scenario)?;

        for cell in &cells {
            east.apply(cell.secret(&authority, &east.namespace, None)?)?;
            cell.comes_alive(&east, healthy.router)
                .with_context(|| cell.name.clone())?;
        }
        healthy.is_as_before(&east, scenario)?;

        for cell in &cells {
            east.delete("secret", &cell.credentials)?;
        }
        for cell in &cells {
            cell.outlives_its_secret(&east, healthy.router)
                .with_context(|| cell.name.clone())?;
        }
        healthy.is_as_before(&east, scenario)
    })
}

/// Who names a Secret.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Entity {
    /// A RouterAccess whose user brings the credentials.
    Access,
    /// A Link.
    Link,
    /// A SecuredAccess whose certificate is in the place of one that would be issued.
    Server,
    /// A RouterAccess, and through it a Certificate, whose issuer is a CA of the user's.
    Issuer,
}

/// One object, and what is wrong with the Secret that it names.
struct Cell {
    entity: Entity,
    fault: Fault,
    name: String,
    credentials: String,
    /// Of its own: where the router listens, or dials.
    port: u16,
}

fn cells() -> Vec<Cell> {
    let entities = [Entity::Access, Entity::Link, Entity::Server, Entity::Issuer];
    let pairs = entities
        .into_iter()
        .flat_map(|entity| Fault::ALL.map(|fault| (entity, fault)));
    let cells = pairs.filter(|pair| makes_sense(*pair)).zip(20_000..);
    cells
        .map(|((entity, fault), port)| {
            let name = format!("{entity:?}-{fault:?}").to_lowercase();
            Cell {
                entity,
                fault,
                credentials: format!("{name}-credentials"),
                name,
                port,
            }
        })
        .collect()
}

fn makes_sense((entity, fault): (Entity, Fault)) -> bool {
    match fault {
        // A link shows a client's certificate, and nobody asks a client for its host; that the other side's is for
        // another host only the router can see (the case `link/is_not_trusted_by_the_other_side`). A CA is at no host.
        Fault::WrongHost => !matches!(entity, Entity::Link | Entity::Issuer),
        // What the user does not bring is issued.
        Fault::Missing => entity != Entity::Server,
        _ => true,
    }
}

impl Cell {
    fn object(&self) -> Value {
        let roles = json!([{"name": "inter-router", "port": self.port}]);
        let spec = match self.entity {
            Entity::Access => json!({
                "accessType": "local",
                "tlsCredentials": self.credentials,
                "generateTlsCredentials": false,
                "roles": roles,
            }),
            Entity::Issuer => json!({
                "accessType": "local",
                "issuer": self.credentials,
                "tlsCredentials": self.certificate(),
                "generateTlsCredentials": true,
                "roles": roles,
            }),
            Entity::Link => {
                // Nobody is there.
                let host = "10.96.255.254";
                let port = self.port.to_string();
                let endpoint = json!({"name": "inter-router", "host": host, "port": port});
                json!({"endpoints": [endpoint], "tlsCredentials": self.credentials})
            }
            Entity::Server => json!({
                "accessType": "local",
                "issuer": USERS_CA,
                "certificate": self.certificate(),
                "selector": {"app": self.name},
                "ports": [{"name": "amqps", "port": self.port}],
            }),
        };
        ours(self.kind(), &self.name, &spec)
    }

    fn kind(&self) -> &'static str {
        match self.entity {
            Entity::Access | Entity::Issuer => "RouterAccess",
            Entity::Link => "Link",
            Entity::Server => "SecuredAccess",
        }
    }

    /// The Certificate that is made for it, where one is.
    fn certificate(&self) -> String {
        match self.entity {
            Entity::Issuer => format!("{}-issued", self.name),
            _ => self.credentials.clone(),
        }
    }

    fn secret(
        &self,
        authority: &Authority,
        namespace: &str,
        fault: Option<Fault>,
    ) -> Result<Option<Value>> {
        let holder = match self.entity {
            Entity::Issuer => Holder::Authority,
            Entity::Link => Holder::Router(Vec::new()),
            Entity::Access | Entity::Server => Holder::Router(vec![
                self.name.clone(),
                format!("{}.{namespace}", self.name),
            ]),
        };
        authority.secret(&self.credentials, &holder, fault)
    }

    /// Conditions that are False, and for which reason.
    fn conditions(&self) -> Vec<(&'static str, String, &'static str, &'static str)> {
        let of_credentials = match self.fault {
            Fault::Missing | Fault::WithoutKey => "CredentialsNotFound",
            Fault::Expired | Fault::ExpiredCa => "CredentialsExpired",
            _ => "CredentialsInvalid",
        };
        let (of_ca, of_issuer) = match self.fault {
            Fault::Missing | Fault::WithoutKey => ("CaNotFound", "CaNotFound"),
            Fault::Expired | Fault::ExpiredCa => ("CaExpired", "CredentialsExpired"),
            _ => ("CaInvalid", "CredentialsInvalid"),
        };
        let name = || self.name.clone();
        match (self.entity, self.fault) {
            (Entity::Access, Fault::WrongHost) => {
                vec![("routeraccess", name(), "Resolved", of_credentials)]
            }
            (Entity::Access, _) => vec![("routeraccess", name(), "Configured", of_credentials)],
            (Entity::Link, _) => vec![
                ("link", name(), "Configured", of_credentials),
                ("link", name(), "Operational", of_credentials),
            ],
            (Entity::Server, fault) => {
                let of_address = match fault {
                    Fault::WrongHost => "NameTaken",
                    _ => of_credentials,
                };
                vec![
                    ("certificate", self.certificate(), "Ready", "NameTaken"),
                    ("securedaccess", name(), "Resolved", of_address),
                ]
            }
            (Entity::Issuer, _) => vec![
                ("certificate", self.certificate(), "Ready", of_ca),
                ("routeraccess", name(), "Configured", of_issuer),
            ],
        }
    }

    /// Each condition names the Secret, the file, and what is wrong with it.
    fn is_told(&self, scene: &Scene) -> Result<()> {
        for (kind, name, of, reason) in self.conditions() {
            let told = scene.refused(kind, &name, of, reason)?;
            let names = told.contains(&format!("{}\"", self.credentials))
                && told.contains(self.fault.file());
            ensure!(names, "{kind} {name}: {told}");
        }
        Ok(())
    }

    /// Whether it has what it was made for: a port that the router listens on, a place that it dials, an address.
    fn is_live(&self, scene: &Scene, router: Process) -> Result<bool> {
        Ok(match self.entity {
            Entity::Access | Entity::Issuer => router.listens(self.port),
            Entity::Link => tally::reports(&scene.kubectl, &scene.namespace)?
                .values()
                .any(|report| report.links.contains_key(&self.name)),
            Entity::Server => {
                !scene.get("securedaccess", &self.name)?["status"]["endpoints"].is_null()
            }
        })
    }

    /// A certificate for another host is no fault to a router that shows it.
    fn is_live_all_the_same(&self) -> bool {
        (self.entity, self.fault) == (Entity::Access, Fault::WrongHost)
    }

    fn comes_alive(&self, scene: &Scene, router: Process) -> Result<()> {
        match self.entity {
            // Nobody is there to answer it.
            Entity::Link => scene.holds("link", &self.name, "Configured")?,
            _ => scene.holds(self.kind(), &self.name, "Ready")?,
        };
        wait::until("it to be alive", scene::WITHIN, || {
            Ok(self.is_live(scene, router)?.then_some(()))
        })
    }

    /// Without its Secret it goes on with the last good version, and says so.
    fn outlives_its_secret(&self, scene: &Scene, router: Process) -> Result<()> {
        let (kind, name, of, reason) = match self.entity {
            Entity::Access | Entity::Link => {
                let name = self.name.clone();
                (self.kind(), name, "Configured", "CredentialsNotFound")
            }
            Entity::Issuer => ("Certificate", self.certificate(), "Ready", "CaNotFound"),
            // Nobody stands in the way any more of the one that is issued.
            Entity::Server => {
                let issued = ("secret", self.credentials.as_str());
                scene.wait("the Secret to be issued", scene::WITHIN, issued, |_| true)?;
                return self.comes_alive(scene, router);
            }
        };
        let told = scene.refused(kind, &name, of, reason)?;
        let is_said = told.contains(&self.credentials) && told.contains("stays in force");
        ensure!(is_said, "{kind} {name}: {told}");
        ensure!(self.is_live(scene, router)?, "it is gone");
        Ok(())
    }
}

/// What has nothing to do with what others do wrong: two sites, their link, a RouterAccess, and what was true of them.
struct Healthy {
    router: Process,
    open: BTreeSet<Connection>,
    objects: Vec<(&'static str, String, Value)>,
}

impl Healthy {
    fn settle(east: &Scene, scenario: &Scenario<'_>, authority: &Authority) -> Result<Healthy> {
        let access = json!({
            "accessType": "local",
            "generateTlsCredentials": true,
            "issuer": USERS_CA,
            "tlsCredentials": "healthy-server",
            "roles": [{"name": "inter-router", "port": HEALTHY_PORT}],
        });
        east.apply([
            authority.own_secret(USERS_CA),
            ours("RouterAccess", "healthy", &access),
        ])?;
        east.holds("routeraccess", "healthy", "Ready")?;
        let router = processes::of_pod(&scenario.router_pod(&east.namespace)?, &ROUTER)?;
        let open = router.connections();
        ensure!(!open.is_empty(), "the link has no connection");
        let link = text(&scenario.is_up()?["metadata"]["name"]).to_owned();
        let objects = [
            ("site", "east".to_owned()),
            ("link", link),
            ("routeraccess", "healthy".to_owned()),
            ("certificate", "healthy-server".to_owned()),
        ];
        let told = objects.map(|(kind, name)| {
            let conditions = conditions(east, kind, &name)?;
            Ok((kind, name, conditions))
        });
        Ok(Healthy {
            router,
            open,
            objects: told.into_iter().collect::<Result<_>>()?,
        })
    }

    /// Nothing that was true was untrue for a moment, or the time of its transition would be another.
    fn is_as_before(&self, east: &Scene, scenario: &Scenario<'_>) -> Result<()> {
        for (kind, name, before) in &self.objects {
            let now = conditions(east, kind, name)?;
            ensure!(now == *before, "{kind} {name}: was {before}, is {now}");
        }
        let open = self.router.connections();
        ensure!(
            self.open.is_subset(&open),
            "{:?} became {open:?}",
            self.open
        );
        ensure!(self.router.listens(HEALTHY_PORT), "the port was closed");
        let tally = scenario.tally()?;
        ensure!(tally == FAULTLESS, "{tally:?}");
        Ok(())
    }
}

fn conditions(scene: &Scene, kind: &str, name: &str) -> Result<Value> {
    let object = scene.get(kind, name)?;
    let ready = condition(&object, "Ready").context("whether it is ready")?;
    ensure!(ready["status"] == "True", "{kind} {name}: {ready}");
    Ok(object["status"]["conditions"].clone())
}

fn scene(bed: &Bed, namespace: &str) -> Result<Scene> {
    Ok(Scene {
        bed: Bed::shared()?,
        kubectl: bed.kubectl(),
        namespace: namespace.to_owned(),
    })
}
