//! What does a user see of a service that lies behind a link? Lines that come back, in time.

use crate::bed::{eventually, free_port};
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// How often a line is sent.
const EVERY: Duration = Duration::from_millis(20);
/// Lines of a second: far more than are ever on their way.
const MANY: u64 = 50;

/// A server that sends back what it gets; its port. It lives as long as the test program.
pub(crate) fn serve() -> u16 {
    let port = free_port();
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    spawn(move || {
        for stream in listener.incoming().flatten() {
            spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    port
}

/// A connection on which a line with the next number is sent again and again.
pub(crate) struct Stream {
    is_over: Arc<AtomicBool>,
    echoed: Arc<AtomicU64>,
    writer: JoinHandle<u64>,
    reader: JoinHandle<Echoes>,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Echoes {
    /// How many lines, from the first one without a fault.
    pub(crate) count: u64,
    /// How long it took at most from one to the next.
    pub(crate) gap: Duration,
    /// How many lines were sent.
    pub(crate) sent: u64,
    /// Whether it was ended by [`Stream::end`].
    pub(crate) is_whole: bool,
}

impl Stream {
    /// Connects once there is a service at this port.
    pub(crate) fn open(port: u16) -> Self {
        let mut socket = None;
        eventually("the service is there", || {
            socket = TcpStream::connect(("127.0.0.1", port)).ok();
            socket.is_some()
        });
        let socket = socket.unwrap();
        socket.set_nodelay(true).unwrap();
        let (is_over, echoed) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let stream = Self {
            writer: {
                let (socket, is_over) = (socket.try_clone().unwrap(), Arc::clone(&is_over));
                spawn(move || write(socket, &is_over))
            },
            reader: {
                let (is_over, echoed) = (Arc::clone(&is_over), Arc::clone(&echoed));
                spawn(move || read(socket, &is_over, &echoed))
            },
            is_over,
            echoed,
        };
        stream.goes_on();
        stream
    }

    /// Waits until so many lines more have come back that those sent before are among them.
    pub(crate) fn goes_on(&self) {
        let start = self.echoed.load(Ordering::SeqCst);
        eventually("lines come back", || {
            assert!(!self.is_cut(), "the stream was cut");
            self.echoed.load(Ordering::SeqCst) >= start + MANY
        });
    }

    /// Whether it ended by itself.
    pub(crate) fn is_cut(&self) -> bool {
        self.reader.is_finished()
    }

    /// Ends it, once all that was sent is back.
    pub(crate) fn end(self) -> Echoes {
        self.is_over.store(true, Ordering::SeqCst);
        let sent = self.writer.join().unwrap();
        let echoes = self.reader.join().unwrap();
        Echoes { sent, ..echoes }
    }
}

/// Sends lines until it is over; how many.
fn write(mut socket: TcpStream, is_over: &AtomicBool) -> u64 {
    let mut sent = 0;
    while !is_over.load(Ordering::SeqCst) && writeln!(socket, "{sent}").is_ok() {
        sent += 1;
        sleep(EVERY);
    }
    let _ = socket.shutdown(Shutdown::Write);
    sent
}

/// Reads lines until the other side has no more.
fn read(socket: TcpStream, is_over: &AtomicBool, echoed: &AtomicU64) -> Echoes {
    let (mut last, mut gap) = (None, Duration::ZERO);
    let lines = BufReader::new(socket).lines().map_while(Result::ok);
    for (line, number) in lines.zip(0_u64..) {
        if line != number.to_string() {
            break;
        }
        echoed.fetch_add(1, Ordering::SeqCst);
        let now = Instant::now();
        gap = gap.max(now - last.replace(now).unwrap_or(now));
    }
    Echoes {
        count: echoed.load(Ordering::SeqCst),
        gap,
        sent: 0,
        is_whole: is_over.load(Ordering::SeqCst),
    }
}
