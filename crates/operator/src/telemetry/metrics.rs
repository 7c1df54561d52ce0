//! What is counted?
//!
//! Labels have a handful of values each, all of them ours: nothing that a user or a peer wrote becomes a label.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// Everything that is counted, in one registry.
pub struct Metrics {
    registry: Registry,
    /// Passes by kind and outcome.
    pub passes: Family<Pass, Counter>,
    /// How long passes took, by kind.
    pub pass_time: Family<OfKind, Histogram, Buckets>,
    /// Calls that write, by verb and outcome.
    pub writes: Family<Write, Counter>,
    /// Whether this replica leads: 0 or 1.
    pub leading: Gauge,
    /// Requests to the grant server, by what came of them.
    pub redemptions: Family<Redemption, Counter>,
    /// Connections to the grant server that are open.
    pub grant_connections: Gauge,
    /// Redemptions of tokens of ours, by what came of them.
    pub redeemed: Family<Redeemed, Counter>,
}

/// Labels of one pass.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Pass {
    /// `Site`, `Link` …
    pub kind: &'static str,
    /// Whether it got through.
    pub result: Done,
}

/// The label of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfKind {
    /// `Site`, `Link` …
    pub kind: &'static str,
}

/// Labels of one write.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Write {
    /// `create`, `apply`, `delete`, `issue`, `redeem`, `nudge`, `status`.
    pub verb: &'static str,
    /// Whether the API server did it.
    pub result: Done,
}

/// Whether something was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(
    non_camel_case_types,
    reason = "label values are written as they are here"
)]
pub enum Done {
    /// It was.
    ok,
    /// It was not, and will be tried again.
    failed,
}

/// The label of a request to the grant server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Redemption {
    /// `granted`, `repeated`, `refused`, `unknown`, `expired`, `used_up`, `malformed`, `limited`, `unavailable`,
    /// `failed`. `used_up` is counted only where the code was right: somebody else has used the token before.
    pub result: &'static str,
}

/// The label of a redemption of a token of ours.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Redeemed {
    /// `stored`, `unreachable`, `untrusted`, `invalid`, `used_up`, `expired`, `code_refused`, `answer_refused`.
    pub result: &'static str,
}

/// From a millisecond to half a minute: a pass may not take longer.
#[derive(Clone, Debug)]
pub struct Buckets;

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(exponential_buckets(0.001, 2.0, 16))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: String,
}

impl Metrics {
    /// All at zero, for the operator of this version.
    pub fn new(version: &str) -> Self {
        let mut registry = Registry::with_prefix("spanwire");
        let build = Family::<Build, Gauge>::default();
        build
            .get_or_create(&Build {
                version: version.to_owned(),
            })
            .set(1);
        registry.register("build_info", "The version that runs", build);

        let metrics = Self {
            registry: Registry::default(),
            passes: Family::default(),
            pass_time: Family::new_with_constructor(Buckets),
            writes: Family::default(),
            leading: Gauge::default(),
            redemptions: Family::default(),
            grant_connections: Gauge::default(),
            redeemed: Family::default(),
        };
        registry.register("passes", "Passes over one object", metrics.passes.clone());
        registry.register_with_unit(
            "pass_time",
            "How long passes took",
            Unit::Seconds,
            metrics.pass_time.clone(),
        );
        registry.register(
            "writes",
            "Calls to the API server that write",
            metrics.writes.clone(),
        );
        registry.register(
            "leading",
            "Whether this replica reconciles",
            metrics.leading.clone(),
        );
        registry.register(
            "grant_requests",
            "Requests to the grant server",
            metrics.redemptions.clone(),
        );
        registry.register(
            "grant_connections",
            "Open connections to the grant server",
            metrics.grant_connections.clone(),
        );
        registry.register(
            "token_redemptions",
            "Redemptions of tokens at other sites",
            metrics.redeemed.clone(),
        );
        Self {
            registry,
            ..metrics
        }
    }

    /// All of it in OpenMetrics text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_told() {
        let metrics = Metrics::new("0");
        metrics
            .passes
            .get_or_create(&Pass {
                kind: "Site",
                result: Done::ok,
            })
            .inc();
        metrics
            .pass_time
            .get_or_create(&OfKind { kind: "Site" })
            .observe(0.01);
        metrics
            .redemptions
            .get_or_create(&Redemption { result: "granted" })
            .inc();
        let text = metrics.text();
        for line in [
            "spanwire_passes_total{kind=\"Site\",result=\"ok\"} 1",
            "spanwire_pass_time_seconds_count{kind=\"Site\"} 1",
            "spanwire_grant_requests_total{result=\"granted\"} 1",
            "spanwire_leading 0",
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
    }
}
