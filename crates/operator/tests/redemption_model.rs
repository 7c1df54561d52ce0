//! Can two servers, three clients and one grant ever add up to more than N claims, or lose one for good?
//!
//! The protocol of `design.md` §6 as a small model, checked in every order of its steps. What may go wrong does so a
//! bounded number of times: a server dies, a write or its answer is lost or comes late, an answer is lost or comes
//! twice, a client asks again though it is still being served. Each step is named after the function that makes it:
//! `redemption` in `grants/redemption.rs`; `record`, `write` and `read_back` in `grants/ledger.rs`; `exchange` and
//! `store` in `redeem/`.

use std::collections::BTreeSet;

use stateright::{Checker, Model, Property};

/// A client, which stands for its nonce too: that is derived from its token and so never changes.
type Client = u8;
type Server = usize;

const CLIENTS: u8 = 3;
const SERVERS: usize = 2;
/// Set where the long versions of tests are asked for.
const FULL: &str = "SPANWIRE_FULL";

/// What the API server has of the grant: a revision, and the claims. The counter is their number.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct Ledger {
    revision: u8,
    claims: Vec<Client>,
}

/// Some clients whose claims go together, in the order of their names.
type Clients = Vec<Client>;

/// A JSON patch on its way to the API server. It may arrive when nobody waits for it any more.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Patch {
    server: Server,
    claims: Clients,
    /// The revision that it was made for.
    revision: u8,
}

/// What a server is doing. The requests for one grant queue up, and all that wait are recorded together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Work {
    Idle,
    /// The credentials are made, and the patch with the claims is sent. For those who wait besides there is no room, if
    /// the patch is done.
    Writing {
        claims: Clients,
        others: Clients,
    },
    /// The fate of the patch is not known.
    Unclear(Clients),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Replica {
    work: Work,
    /// What it knows of the grant: by its watch, which may be late, or from its last write.
    seen: Ledger,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Answer {
    Granted,
    UsedUp,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    ledger: Ledger,
    servers: [Replica; SERVERS],
    /// Requests that no server has taken yet.
    asked: BTreeSet<Client>,
    patches: BTreeSet<Patch>,
    answers: BTreeSet<(Client, Answer)>,
    /// What each client has stored, which is final.
    stored: [Option<Answer>; CLIENTS as usize],
    faults: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// A client without an answer sends its code, with the nonce that it always sends.
    Exchange(Client),
    /// A server takes requests, finds their codes right, makes credentials, and records the claims by what it knows: it
    /// may know of no write but its own, or all.
    Redemption(Server, Clients, News),
    /// The API server takes a patch, and its answer arrives if somebody waits for it.
    Write(Patch),
    /// A server that does not know what became of its patch asks, and records by what it hears.
    ReadBack(Server),
    /// A client stores its answer.
    Store(Client, Answer),

    // What may go wrong.
    Crash(Server),
    /// The patch is on its way, and the server is told that it failed.
    GiveUp(Server),
    LosePatch(Patch),
    LoseAnswer(Client, Answer),
    /// A client takes an answer that will come once more.
    StoreTwice(Client, Answer),
    /// A client asks again though it is being served.
    ExchangeAgain(Client),
}

/// How far a server's watch has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum News {
    Latest,
    OnlyItsOwn,
}

/// Ways to get it wrong, so that the model is known to notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// Patches do not name the revision that they were made for.
    Unguarded,
    /// Claims are not remembered, so a repeat is one more.
    Forgetful,
    /// Where there is room for one, all who wait are counted.
    Crowded,
    /// A write whose fate is unclear is taken for done.
    Hopeful,
    /// A write whose fate is unclear is taken for failed, and its client refused.
    Hopeless,
}

/// The protocol, for a grant that allows so many redemptions.
struct Protocol {
    allowed: usize,
    /// How often something goes wrong.
    faults: u8,
    flaw: Flaw,
}

impl World {
    fn is_served(&self, client: Client) -> bool {
        let is_working = self.servers.iter().any(|server| match &server.work {
            Work::Idle => false,
            Work::Writing { claims, others } => {
                claims.contains(&client) || others.contains(&client)
            }
            Work::Unclear(served) => served.contains(&client),
        });
        is_working
            || self.asked.contains(&client)
            || self.answers.iter().any(|(to, _)| *to == client)
    }

    /// What a server tells all whom it serves.
    fn answer(&mut self, server: Server, clients: Clients, answer: Answer) {
        self.servers[server].work = Work::Idle;
        let answers = clients.into_iter().map(|client| (client, answer));
        self.answers.extend(answers);
    }

    /// Whether the server still waits for what becomes of this patch.
    fn is_awaited(&self, patch: &Patch) -> bool {
        matches!(&self.servers[patch.server].work,
            Work::Writing { claims, .. } if *claims == patch.claims)
    }

    /// The API server's part of a write: whether it was done.
    fn take(&mut self, patch: &Patch, flaw: Flaw) -> bool {
        self.patches.remove(patch);
        let is_current = patch.revision == self.ledger.revision || flaw == Flaw::Unguarded;
        if is_current {
            self.ledger.revision += 1;
            self.ledger.claims.extend(&patch.claims);
        }
        is_current
    }

    fn granted(&self) -> impl Iterator<Item = Client> {
        (0..CLIENTS).filter(|client| self.stored[usize::from(*client)] == Some(Answer::Granted))
    }
}

impl Protocol {
    /// A claim that is there is repeated; the others are written, as far as there is room.
    fn record(&self, world: &mut World, server: Server, clients: Clients, known: Ledger) {
        let is_known =
            |client: &Client| self.flaw != Flaw::Forgetful && known.claims.contains(client);
        let (repeated, new): (Clients, Clients) = clients.into_iter().partition(is_known);
        let room = self.allowed.saturating_sub(known.claims.len());
        let fitting = match self.flaw {
            Flaw::Crowded if room > 0 => new.len(),
            _ => room.min(new.len()),
        };
        let (claims, others) = new.split_at(fitting);
        let (claims, others) = (claims.to_vec(), others.to_vec());
        let revision = known.revision;
        world.servers[server].seen = known;
        world.answer(server, repeated, Answer::Granted);
        if claims.is_empty() {
            world.answer(server, others, Answer::UsedUp);
        } else {
            world.patches.insert(Patch {
                server,
                claims: claims.clone(),
                revision,
            });
            world.servers[server].work = Work::Writing { claims, others };
        }
    }

    /// What a server does that hears of its patch: that it was done, or that it may not have been.
    fn hear(&self, world: &mut World, server: Server, is_done: bool) -> Option<()> {
        let Work::Writing { claims, others } = world.servers[server].work.clone() else {
            return None;
        };
        if is_done {
            world.servers[server].seen = world.ledger.clone();
        }
        match self.flaw {
            Flaw::Hopeless if !is_done => {
                world.answer(server, [claims, others].concat(), Answer::UsedUp);
            }
            flaw if is_done || flaw == Flaw::Hopeful => {
                world.answer(server, claims, Answer::Granted);
                world.answer(server, others, Answer::UsedUp);
            }
            _ => {
                let mut clients = [claims, others].concat();
                clients.sort_unstable();
                world.servers[server].work = Work::Unclear(clients);
            }
        }
        Some(())
    }

    fn step(&self, world: &mut World, step: &Step) -> Option<()> {
        match step.clone() {
            Step::Exchange(client) | Step::ExchangeAgain(client) => {
                world.asked.insert(client);
            }
            Step::Redemption(server, clients, news) => {
                world.asked.retain(|client| !clients.contains(client));
                let known = match news {
                    News::Latest => world.ledger.clone(),
                    News::OnlyItsOwn => world.servers[server].seen.clone(),
                };
                self.record(world, server, clients, known);
            }
            Step::Write(patch) => {
                let is_done = world.take(&patch, self.flaw);
                if world.is_awaited(&patch) {
                    self.hear(world, patch.server, is_done)?;
                }
            }
            Step::ReadBack(server) => {
                let Work::Unclear(clients) = world.servers[server].work.clone() else {
                    return None;
                };
                self.record(world, server, clients, world.ledger.clone());
            }
            Step::Store(client, answer) => {
                world.answers.remove(&(client, answer));
                world.stored[usize::from(client)].get_or_insert(answer);
            }
            Step::Crash(server) => {
                world.servers[server] = Replica {
                    work: Work::Idle,
                    seen: world.ledger.clone(),
                };
            }
            Step::GiveUp(server) => self.hear(world, server, false)?,
            Step::LosePatch(patch) => {
                world.patches.remove(&patch);
                if world.is_awaited(&patch) {
                    self.hear(world, patch.server, false)?;
                }
            }
            Step::LoseAnswer(client, answer) => {
                world.answers.remove(&(client, answer));
            }
            Step::StoreTwice(client, answer) => {
                world.stored[usize::from(client)].get_or_insert(answer);
            }
        }
        if step.is_fault() {
            world.faults = world.faults.checked_sub(1)?;
        }
        Some(())
    }
}

impl Step {
    fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::Crash(_)
                | Self::GiveUp(_)
                | Self::LosePatch(_)
                | Self::LoseAnswer(..)
                | Self::StoreTwice(..)
                | Self::ExchangeAgain(_)
        )
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let idle = Replica {
            work: Work::Idle,
            seen: Ledger::default(),
        };
        vec![World {
            ledger: Ledger::default(),
            servers: [idle.clone(), idle],
            asked: BTreeSet::new(),
            patches: BTreeSet::new(),
            answers: BTreeSet::new(),
            stored: [None; CLIENTS as usize],
            faults: self.faults,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        for client in 0..CLIENTS {
            if world.stored[usize::from(client)].is_none() {
                steps.push(if world.is_served(client) {
                    Step::ExchangeAgain(client)
                } else {
                    Step::Exchange(client)
                });
            }
        }
        for (server, replica) in world.servers.iter().enumerate() {
            match replica.work {
                Work::Idle => {
                    for clients in batches(&world.asked) {
                        steps.push(Step::Redemption(server, clients.clone(), News::Latest));
                        if replica.seen != world.ledger {
                            steps.push(Step::Redemption(server, clients, News::OnlyItsOwn));
                        }
                    }
                }
                Work::Writing { .. } => steps.push(Step::GiveUp(server)),
                Work::Unclear(_) => steps.push(Step::ReadBack(server)),
            }
            if replica.work != Work::Idle {
                steps.push(Step::Crash(server));
            }
        }
        for patch in &world.patches {
            steps.extend([Step::Write(patch.clone()), Step::LosePatch(patch.clone())]);
        }
        for (client, answer) in &world.answers {
            steps.extend([
                Step::Store(*client, *answer),
                Step::LoseAnswer(*client, *answer),
                Step::StoreTwice(*client, *answer),
            ]);
        }
        if world.faults == 0 {
            steps.retain(|step| !step.is_fault());
        }
    }

    fn next_state(&self, last: &World, step: Step) -> Option<World> {
        let mut world = last.clone();
        self.step(&mut world, &step)?;
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("at most N claims", |model: &Self, world: &World| {
                world.ledger.claims.len() <= model.allowed
            }),
            Property::always("a claim is counted once", |_, world: &World| {
                let distinct: BTreeSet<_> = world.ledger.claims.iter().collect();
                distinct.len() == world.ledger.claims.len()
            }),
            Property::always(
                "nobody is granted what is not counted",
                |_, world: &World| {
                    world
                        .granted()
                        .all(|client| world.ledger.claims.contains(&client))
                },
            ),
            Property::always(
                "once all is quiet, exactly N are granted",
                |model: &Self, world: &World| {
                    let mut steps = Vec::new();
                    model.actions(world, &mut steps);
                    let is_quiet = steps
                        .iter()
                        .all(|step| model.next_state(world, step.clone()).is_none());
                    let granted = world.granted().count();
                    let refused = world
                        .stored
                        .iter()
                        .filter(|stored| **stored == Some(Answer::UsedUp));
                    !is_quiet
                        || (granted == model.allowed
                            && world.ledger.claims.len() == model.allowed
                            && refused.count() == usize::from(CLIENTS) - model.allowed)
                },
            ),
            // Otherwise those above would hold for a world in which nothing happens.
            Property::sometimes(
                "N are granted after all that may go wrong",
                |model: &Self, world: &World| {
                    world.faults == 0 && world.granted().count() == model.allowed
                },
            ),
        ]
    }
}

/// Whom a server may take at once: any of those who ask, but not nobody.
fn batches(asked: &BTreeSet<Client>) -> impl Iterator<Item = Clients> {
    (1..1_u8 << CLIENTS)
        .map(|set| {
            (0..CLIENTS)
                .filter(|client| set & (1 << client) != 0)
                .collect()
        })
        .filter(|clients: &Clients| clients.iter().all(|client| asked.contains(client)))
}

fn checked(allowed: usize, faults: u8, flaw: Flaw) -> impl Checker<Protocol> {
    let protocol = Protocol {
        allowed,
        faults,
        flaw,
    };
    protocol.checker().threads(2).spawn_bfs().join()
}

/// Exhaustive: every order of every step.
#[test]
fn two_servers_never_add_up_to_more_than_n_and_lose_none() {
    let faults = if std::env::var_os(FULL).is_some() {
        3
    } else {
        2
    };
    for allowed in [1, 2] {
        let checker = checked(allowed, faults, Flaw::None);
        checker.assert_properties();
        let states = checker.unique_state_count();
        println!("{allowed} allowed, {faults} faults: {states} states");
    }
}

#[test]
fn a_protocol_with_a_flaw_is_found_out() {
    for (flaw, property) in [
        (Flaw::Unguarded, "at most N claims"),
        (Flaw::Crowded, "at most N claims"),
        (Flaw::Forgetful, "a claim is counted once"),
        (Flaw::Hopeful, "nobody is granted what is not counted"),
        (Flaw::Hopeless, "once all is quiet, exactly N are granted"),
    ] {
        let found = checked(2, 1, flaw).discovery(property);
        assert!(found.is_some(), "{flaw:?} passed for right");
    }
}
