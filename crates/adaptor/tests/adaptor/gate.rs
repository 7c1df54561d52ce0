//! What can happen between an adaptor and its router?

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{sleep, spawn};
use std::time::Duration;

/// What becomes of connections.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    /// They reach the router.
    Open,
    /// They are accepted, and nothing comes back.
    Silent,
    /// They are closed at once.
    Slam,
    /// They are answered in another language.
    Babble,
    /// They end after so many bytes from the router.
    Cut(usize),
    /// What the router says takes so long.
    Slow(Duration),
}

/// A door in front of a router.
pub(crate) struct Gate {
    pub(crate) address: String,
    shared: Arc<Shared>,
}

struct Shared {
    router: String,
    mood: Mutex<Mood>,
    /// Counts changes of mood: a connection of an earlier one is closed.
    era: AtomicU32,
    visits: AtomicUsize,
}

impl Gate {
    pub(crate) fn new(router: &str, mood: Mood) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared {
            router: router.to_owned(),
            mood: Mutex::new(mood),
            era: AtomicU32::new(0),
            visits: AtomicUsize::new(0),
        });
        let door = Arc::clone(&shared);
        spawn(move || {
            for stream in listener.incoming().flatten() {
                door.visits.fetch_add(1, Ordering::Relaxed);
                let door = Arc::clone(&door);
                spawn(move || door.admit(stream));
            }
        });
        Self { address, shared }
    }

    /// Changes the mood and closes all connections.
    pub(crate) fn set(&self, mood: Mood) {
        *self.shared.mood.lock().unwrap() = mood;
        self.shared.era.fetch_add(1, Ordering::SeqCst);
    }

    /// Changes the mood for connections that are open, too.
    pub(crate) fn turn(&self, mood: Mood) {
        *self.shared.mood.lock().unwrap() = mood;
    }

    /// How many connections there were.
    pub(crate) fn visits(&self) -> usize {
        self.shared.visits.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn mood(&self) -> Mood {
        *self.mood.lock().unwrap()
    }

    fn admit(self: Arc<Self>, mut client: TcpStream) {
        match self.mood() {
            Mood::Slam => return,
            Mood::Babble => {
                let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
            }
            _ => {}
        }
        let era = self.era.load(Ordering::SeqCst);
        let Ok(mut router) = TcpStream::connect(&self.router) else {
            return;
        };
        let (mut to_router, mut to_client) =
            (router.try_clone().unwrap(), client.try_clone().unwrap());
        for stream in [&client, &router] {
            stream
                .set_read_timeout(Some(Duration::from_millis(20)))
                .unwrap();
            stream.set_nodelay(true).unwrap();
        }
        let there = Arc::clone(&self);
        spawn(move || there.pump(&mut client, &mut to_router, era, false));
        self.pump(&mut router, &mut to_client, era, true);
    }

    fn pump(&self, from: &mut TcpStream, to: &mut TcpStream, era: u32, is_answer: bool) {
        let mut buffer = [0; 16 * 1024];
        let mut count = 0;
        while self.era.load(Ordering::SeqCst) == era {
            let read = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                Err(_) => break,
            };
            count += read;
            if is_answer {
                match self.mood() {
                    Mood::Silent | Mood::Babble => continue,
                    Mood::Cut(limit) if count > limit => break,
                    Mood::Slow(pause) => sleep(pause),
                    _ => {}
                }
            }
            if to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}
