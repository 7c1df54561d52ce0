//! Is the router up, and what does it count?

use std::sync::Arc;

use axum::Router as Pathways;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::router::Router;

/// Which pages an HTTP listener serves; anything else is not found.
pub(crate) struct Pages {
    pub(crate) healthz: bool,
    pub(crate) metrics: bool,
}

/// Answers once the whole configuration has been applied, never before.
pub(crate) async fn serve(
    router: Arc<Router>,
    socket: TcpListener,
    pages: Pages,
    closed: CancellationToken,
) {
    let mut operational = router.operational.subscribe();
    if operational
        .wait_for(|is_operational| *is_operational)
        .await
        .is_err()
    {
        return;
    }
    let mut pathways = Pathways::new();
    if pages.healthz {
        pathways = pathways.route("/healthz", get(|| async { "OK\n" }));
    }
    if pages.metrics {
        let links = Arc::clone(&router.links);
        pathways = pathways.route(
            "/metrics",
            get(move || async move {
                let text = format!(
                    "# TYPE qdr_connections_total gauge\nqdr_connections_total {}\n",
                    links.count()
                );
                ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text)
            }),
        );
    }
    let served = axum::serve(socket, pathways).with_graceful_shutdown(closed.cancelled_owned());
    let _ = served.await;
}
