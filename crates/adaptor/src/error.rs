//! What can go wrong in each room of the adaptor? None of it ends the process.

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// The mounted folder could not be read.
#[derive(Debug, Error)]
pub(crate) enum ReadMount {
    #[error("cannot follow {}: {source}", path.display())]
    FollowLink { path: PathBuf, source: io::Error },
    #[error("cannot read {name}: {source}")]
    ReadFile { name: String, source: io::Error },
    #[error("the folder changed each time it was read")]
    ReadWhole,
}

/// A profile's files were not taken into the memory volume. Never carries content.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum TakeCredential {
    #[error("profiles.json describes it wrongly: {0}")]
    BelieveEntry(#[from] spanwire_router::credentials::CheckProfile),
    #[error("{file} cannot be read: {message}")]
    ReadFile { file: &'static str, message: String },
    #[error("{file} is not the file that profiles.json describes")]
    MatchDigest { file: &'static str },
    #[error("{file} holds no certificate")]
    FindCertificate { file: &'static str },
    #[error("{file} holds a certificate that cannot be read: {message}")]
    ReadCertificate { file: &'static str, message: String },
    #[error("tls.key holds no private key that can be read: {message}")]
    ReadKey { message: String },
    #[error("tls.key is not the key of the certificate in tls.crt")]
    MatchKey,
    #[error("it has {present} but no {absent}")]
    FindPair {
        present: &'static str,
        absent: &'static str,
    },
    #[error("it has no file at all")]
    FindFile,
    #[error("it cannot be stored: {message}")]
    StoreFile { message: String },
}

/// The router did not do what it was asked.
#[derive(Debug, Error)]
pub(crate) enum AskRouter {
    /// It answered, and said no. The connection is fine.
    #[error("{description} ({status})")]
    Refuse { status: i64, description: String },
    /// It could not be reached, or went away.
    #[error("the connection to the router was lost: {0}")]
    Connect(String),
    /// It did not answer in time; whether it did the thing is not known.
    #[error("the router did not answer within {0:?}")]
    Await(std::time::Duration),
    /// It answered something that is no answer, or too much.
    #[error("the router's answer cannot be used: {0}")]
    ReadReply(String),
}

/// The report was not written.
#[derive(Debug, Error)]
pub(crate) enum WriteReport {
    #[error("cannot read {}: {source}", path.display())]
    ReadFile { path: PathBuf, source: io::Error },
    #[error("{} holds no certificate: {message}", path.display())]
    ReadCa { path: PathBuf, message: String },
    #[error("the API server's address {url:?} is not right: {message}")]
    ParseUrl { url: String, message: String },
    #[error("cannot set up the client: {0}")]
    MakeClient(#[source] kube::Error),
    #[error("cannot patch the report: {0}")]
    PatchReport(#[source] kube::Error),
    #[error("the API server did not answer within {0:?}")]
    Await(std::time::Duration),
}
