//! Where does an HTTP/1.1 message end? As much of the protocol as the tests' own ends of a connection need.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context as _, Result, ensure};
use rustls::{ClientConnection, StreamOwned};

/// A connection to a server.
pub type Line = StreamOwned<ClientConnection, TcpStream>;

/// What a server said.
#[derive(Debug)]
pub struct Said {
    pub status: u16,
    pub body: String,
}

/// Sends a request, and hears the answer.
pub(crate) fn exchange(stream: &mut (impl Read + Write), request: &str) -> Result<Said> {
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
    let (head, body) = receive(stream)?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    Ok(Said { status, body })
}

/// Reads one message, as long as it says that it is: its head and its body. One that does not say has no body.
pub(crate) fn receive(stream: &mut impl Read) -> Result<(String, String)> {
    let (mut message, mut buffer) = (Vec::new(), [0; 8192]);
    loop {
        let text = std::str::from_utf8(&message).unwrap_or_default();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = header(head, "content-length").unwrap_or("0");
            if body.len() >= length.parse()? {
                return Ok((head.to_owned(), body.to_owned()));
            }
        }
        // Who is killed says no farewell.
        let count = stream.read(&mut buffer)?;
        ensure!(count > 0, "half a message");
        message.extend(buffer.get(..count).unwrap_or_default());
    }
}

/// A header of a message's head, if it is there.
pub(crate) fn header<'a>(head: &'a str, wanted: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case(wanted).then_some(value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_ends_where_it_says() -> Result<()> {
        let parts = ["POST / HTTP/1.1\r\nContent-", "Length: 4\r\n\r\nco", "de"];
        let [begin, middle, end] = parts.map(str::as_bytes);
        let (head, body) = receive(&mut begin.chain(middle).chain(end))?;
        assert_eq!(head, "POST / HTTP/1.1\r\nContent-Length: 4");
        assert_eq!(body, "code");
        assert!(receive(&mut begin.chain(middle)).is_err());
        let (_, none) = receive(&mut "GET / HTTP/1.1\r\n\r\n".as_bytes())?;
        assert_eq!(none, "");
        Ok(())
    }
}
