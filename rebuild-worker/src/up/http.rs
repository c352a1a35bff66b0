//! `/healthz`, `/readyz` and `/metrics`, over plain HTTP/1.
//!
//! `/healthz` says that the process is alive, and nothing else: it asks nobody, so that a slow disk gets no process killed. `/readyz` and
//! `/metrics` measure when they are asked. A store that does not answer within [`READ_BOUND`] makes the first say 503, and the second
//! show its gauges as NaN beside `recoup_store_up 0`: an old figure would look like a good one.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use metrics_exporter_prometheus::PrometheusHandle;
use recoup_projections::Projections;
use serde_json::json;

use super::health::{self, Measured};
use super::supervisor::{Loops, Supervisor};
use crate::metrics;

/// How long the store may take to say where it stands.
const READ_BOUND: Duration = Duration::from_secs(2);

/// How often the loop that serves says that it is alive.
const BEAT: Duration = Duration::from_secs(1);

/// How long it may be silent.
const SILENCE: Duration = Duration::from_secs(15);

/// How long requests that are under way may take once it is told to stop: a client that sends nothing must not hold up an end.
const LAST_ANSWERS: Duration = Duration::from_secs(3);

/// What answers are made from.
#[derive(Clone)]
pub(super) struct App {
    projections: Projections,
    loops: Loops,
    exporter: PrometheusHandle,
}

impl App {
    pub(super) fn new(projections: Projections, loops: Loops, exporter: PrometheusHandle) -> Self {
        Self {
            projections,
            loops,
            exporter,
        }
    }

    async fn measure(&self) -> Measured {
        let standing = tokio::time::timeout(READ_BOUND, self.projections.standing()).await;
        let standing = match standing {
            Ok(Ok(standing)) => Ok(standing),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("nothing within {READ_BOUND:?}")),
        };
        Measured {
            standing,
            at: self.projections.now(),
            loops: self.loops.views(),
        }
    }
}

/// Serves as a loop of its own: what breaks it is counted, and it begins again on the same socket.
pub(super) fn start(supervisor: &mut Supervisor, listener: TcpListener, app: App) {
    let listener = Arc::new(listener);
    supervisor.spawn("http", SILENCE, move |stop, status| {
        let (listener, router) = (Arc::clone(&listener), router(app.clone()));
        async move {
            let listener = listener.try_clone().context("the socket is gone")?;
            let listener =
                tokio::net::TcpListener::from_std(listener).context("the socket cannot be used")?;
            let stopped = stop.clone().cancelled_owned();
            let serving = axum::serve(listener, router).with_graceful_shutdown(stopped);
            let serving = serving.into_future();
            let mut beats = tokio::time::interval(BEAT);
            let patience = async {
                stop.cancelled().await;
                tokio::time::sleep(LAST_ANSWERS).await;
            };
            tokio::pin!(serving, patience);
            loop {
                tokio::select! {
                    served = &mut serving => return Ok(served.context("serving failed")?),
                    () = &mut patience => return Ok(()),
                    _ = beats.tick() => status.succeed(),
                }
            }
        }
    });
}

fn router(app: App) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(scrape))
        .with_state(app)
}

async fn healthz() -> impl IntoResponse {
    Json(json!({ "alive": true, "version": env!("CARGO_PKG_VERSION") }))
}

async fn readyz(State(app): State<App>) -> impl IntoResponse {
    let (is_ready, document) = health::judge(&app.measure().await);
    let status = if is_ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(document))
}

async fn scrape(State(app): State<App>) -> impl IntoResponse {
    metrics::set_measured(&app.measure().await);
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], app.exporter.render())
}
