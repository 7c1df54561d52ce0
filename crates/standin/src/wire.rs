//! How does a connection begin, before AMQP proper: headers, SASL, and the exchange of `open`?
//!
//! By hand, as fe2o3-amqp neither speaks SASL EXTERNAL to the real router nor shows an acceptor
//! what the other side's `open` said.

use std::io;

use fe2o3_amqp::types::definitions::Error;
use fe2o3_amqp::types::performatives::{Close, Open};
use fe2o3_amqp::types::primitives::{Array, Binary, Symbol};
use fe2o3_amqp::types::sasl::{SaslCode, SaslInit, SaslMechanisms, SaslOutcome};
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio_util::codec::length_delimited::{Builder, LengthDelimitedCodec};
use tokio_util::codec::{Framed, FramedParts};

use crate::wording::{UNAUTHORIZED, describe};

/// Anything that bytes flow over, both ways: plain, or TLS of either side.
pub(crate) type Stream = Box<dyn Duplex>;

/// What a [`Stream`] must be.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Duplex for S {}

const AMQP: [u8; 8] = *b"AMQP\x00\x01\x00\x00";
const SASL: [u8; 8] = *b"AMQP\x03\x01\x00\x00";
/// The largest frame that is taken, as the real router announces it.
pub(crate) const MAX_FRAME_SIZE: u32 = 16384;

/// Descriptor codes of the performatives that are told apart here.
const OPEN: [u8; 3] = [0x00, 0x53, 0x10];
const CLOSE: [u8; 3] = [0x00, 0x53, 0x18];

/// Which SASL layer a listener asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mechanism {
    /// None, or ANONYMOUS.
    Anonymous,
    /// The client certificate that TLS has verified; nothing less.
    External,
}

/// A connection whose `open` has been exchanged.
pub(crate) struct Opened {
    pub(crate) frames: Frames,
    /// What the other side said of itself.
    pub(crate) peer: Open,
    /// The SASL mechanism used, if there was a SASL layer.
    pub(crate) sasl: Option<&'static str>,
}

/// What a frame is, as far as a link between two stand-ins cares.
pub(crate) enum Frame {
    Empty,
    Close(Option<String>),
    Other,
}

/// Length-delimited frames over a stream.
pub(crate) struct Frames(Framed<Stream, LengthDelimitedCodec>);

impl Frames {
    fn new(stream: Stream) -> Self {
        let codec = Builder::new()
            .length_field_length(4)
            .length_adjustment(-4)
            .num_skip(4)
            .max_frame_length(MAX_FRAME_SIZE as usize)
            .new_codec();
        Self(Framed::new(stream, codec))
    }

    /// The stream, and what had been read of it beyond the last frame.
    pub(crate) fn into_parts(self) -> (Stream, BytesMut) {
        let FramedParts { io, read_buf, .. } = self.0.into_parts();
        (io, read_buf)
    }

    /// Eight bytes that say which protocol follows.
    async fn header(&mut self) -> io::Result<[u8; 8]> {
        let mut header = [0; 8];
        while self.0.read_buffer().len() < header.len() {
            let missing = header.len() - self.0.read_buffer().len();
            let count = self.0.get_mut().read(&mut header[..missing]).await?;
            if count == 0 && missing == header.len() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if count == 0 {
                // No header, and nothing more: an alert of TLS, most likely.
                return Err(invalid(UNAUTHORIZED));
            }
            self.0.read_buffer_mut().extend_from_slice(&header[..count]);
        }
        self.0
            .read_buffer_mut()
            .split_to(header.len())
            .copy_to_slice(&mut header);
        Ok(header)
    }

    async fn send_header(&mut self, header: [u8; 8]) -> io::Result<()> {
        self.0.get_mut().write_all(&header).await?;
        self.0.get_mut().flush().await
    }

    /// Cancelling this loses nothing.
    async fn body(&mut self) -> io::Result<BytesMut> {
        let mut frame = self
            .0
            .next()
            .await
            .ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))??;
        let offset = frame.first().map_or(2, |doff| usize::from(*doff)) * 4;
        let skipped = offset.saturating_sub(4).min(frame.len());
        Ok(frame.split_off(skipped))
    }

    async fn send(&mut self, kind: u8, body: &[u8]) -> io::Result<()> {
        self.0.send(frame(kind, body)).await
    }

    pub(crate) async fn next(&mut self) -> io::Result<Frame> {
        let body = self.body().await?;
        if body.is_empty() {
            return Ok(Frame::Empty);
        }
        if !body.starts_with(&CLOSE) {
            return Ok(Frame::Other);
        }
        let close: Close = decode(&body)?;
        Ok(Frame::Close(close.error.map(|error| describe(&error))))
    }

    /// A sign of life.
    pub(crate) async fn send_empty(&mut self) -> io::Result<()> {
        self.send(0, &[]).await
    }

    pub(crate) async fn send_close(&mut self, error: Option<Error>) -> io::Result<()> {
        self.send(0, &encode(&Close { error })?).await
    }
}

/// A frame without its length field: data offset, type, channel 0, body.
fn frame(kind: u8, body: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(body.len() + 4);
    frame.put_slice(&[2, kind, 0, 0]);
    frame.put_slice(body);
    frame.freeze()
}

/// The same exchange as raw bytes: header and `open`, for somebody who comes in later.
pub(crate) fn beginning(open: &Open) -> io::Result<Bytes> {
    let frame = frame(0, &encode(open)?);
    let mut bytes = BytesMut::from(&AMQP[..]);
    bytes.put_u32(u32::try_from(frame.len() + 4).unwrap_or(u32::MAX));
    bytes.put_slice(&frame);
    Ok(bytes.freeze())
}

/// A `close` frame as raw bytes.
pub(crate) fn ending(error: Error) -> io::Result<Bytes> {
    let frame = frame(0, &encode(&Close { error: Some(error) })?);
    let mut bytes = BytesMut::new();
    bytes.put_u32(u32::try_from(frame.len() + 4).unwrap_or(u32::MAX));
    bytes.put_slice(&frame);
    Ok(bytes.freeze())
}

/// Reads and throws away what `beginning` makes.
pub(crate) async fn skip_beginning(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    stream.read_exact(&mut [0; 8]).await?;
    let length = stream.read_u32().await?.saturating_sub(4);
    let mut rest = vec![0; length.min(MAX_FRAME_SIZE) as usize];
    stream.read_exact(&mut rest).await?;
    Ok(())
}

/// The listener's side.
pub(crate) async fn accept(stream: Stream, demanded: Mechanism, own: &Open) -> io::Result<Opened> {
    let mut frames = Frames::new(stream);
    let mut sasl = None;
    let mut header = frames.header().await?;
    if header == SASL {
        frames.send_header(SASL).await?;
        sasl = Some(offer(&mut frames, demanded).await?);
        header = frames.header().await?;
    } else if demanded == Mechanism::External {
        return Err(invalid(UNAUTHORIZED));
    }
    if header != AMQP {
        return Err(invalid(
            "amqp:connection:framing-error AMQP header mismatch",
        ));
    }
    frames.send_header(AMQP).await?;
    exchange(frames, own, sasl).await
}

/// The connector's side.
pub(crate) async fn connect(
    stream: Stream,
    mechanism: Mechanism,
    own: &Open,
) -> io::Result<Opened> {
    let mut frames = Frames::new(stream);
    frames.send_header(SASL).await?;
    if frames.header().await? != SASL {
        return Err(invalid(UNAUTHORIZED));
    }
    let name = choose(&mut frames, mechanism).await?;
    frames.send_header(AMQP).await?;
    if frames.header().await? != AMQP {
        return Err(invalid(
            "amqp:connection:framing-error AMQP header mismatch",
        ));
    }
    exchange(frames, own, Some(name)).await
}

async fn exchange(
    mut frames: Frames,
    own: &Open,
    sasl: Option<&'static str>,
) -> io::Result<Opened> {
    frames.send(0, &encode(own)?).await?;
    let body = frames.body().await?;
    if !body.starts_with(&OPEN) {
        return Err(invalid("amqp:connection:framing-error expected open"));
    }
    let peer = decode(&body)?;
    Ok(Opened { frames, peer, sasl })
}

/// SASL, the listener's side. EXTERNAL needs a response, if only an empty one.
async fn offer(frames: &mut Frames, demanded: Mechanism) -> io::Result<&'static str> {
    let name = demanded.name();
    let mechanisms = SaslMechanisms {
        sasl_server_mechanisms: Array(vec![Symbol::from(name)]),
    };
    frames.send(1, &encode(&mechanisms)?).await?;
    let init: SaslInit = decode(&frames.body().await?)?;
    let answered = demanded == Mechanism::Anonymous || init.initial_response.is_some();
    let granted = init.mechanism.0 == name && answered;
    let outcome = SaslOutcome {
        code: if granted {
            SaslCode::Ok
        } else {
            SaslCode::Auth
        },
        additional_data: None,
    };
    frames.send(1, &encode(&outcome)?).await?;
    if granted {
        return Ok(name);
    }
    Err(invalid(UNAUTHORIZED))
}

/// SASL, the connector's side.
async fn choose(frames: &mut Frames, mechanism: Mechanism) -> io::Result<&'static str> {
    let name = mechanism.name();
    let refused = || invalid(UNAUTHORIZED);
    let offered: SaslMechanisms = decode(&frames.body().await?)?;
    if !offered
        .sasl_server_mechanisms
        .0
        .iter()
        .any(|offer| offer.0 == name)
    {
        return Err(refused());
    }
    let init = SaslInit {
        mechanism: Symbol::from(name),
        initial_response: Some(Binary::from(Vec::new())),
        hostname: None,
    };
    frames.send(1, &encode(&init)?).await?;
    let outcome: SaslOutcome = decode(&frames.body().await?)?;
    match outcome.code {
        SaslCode::Ok => Ok(name),
        _ => Err(refused()),
    }
}

impl Mechanism {
    fn name(self) -> &'static str {
        match self {
            Self::Anonymous => "ANONYMOUS",
            Self::External => "EXTERNAL",
        }
    }
}

fn encode(performative: &impl serde::Serialize) -> io::Result<Vec<u8>> {
    serde_amqp::to_vec(performative).map_err(io::Error::other)
}

fn decode<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> io::Result<T> {
    serde_amqp::from_slice(body).map_err(|fault| invalid(&format!("amqp:decode-error {fault}")))
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
