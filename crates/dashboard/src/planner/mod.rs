//! The page of the planner, which simulates a step of the job with the values of a form. The query of the page's
//! address contains these values. `choice` has the fields that a user can change. `model` plans the job with a choice,
//! as `stagecoach plan` does. `html` shows the plan.
//!
//! The page works without a script: a button submits the form. If the browser runs scripts, `planner.js` requests only
//! the plan on every change, and replaces that part of the page.

mod choice;
mod html;
mod model;

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse};
use axum::routing::{MethodRouter, get};

use choice::PlannerQuery;
pub use model::Planner;

use super::server::{LIMITS, ServerLimits, Site, file, serve_site};

/// The number of concurrent plans. With two, a slow plan, such as a plan of the schedule Auto, does not delay the next
/// plan.
const WORKERS: usize = 2;

/// Serves the planner of a job at a port of 127.0.0.1 until the process exits. Port 0 selects any free port. Returns
/// the address, with the token.
///
/// # Errors
/// Fails if the port is taken, or if the system can't start a thread or provide random bytes.
pub fn serve_planner(planner: Planner, port: u16) -> io::Result<String> {
    serve_site(site(planner), port, ServerLimits { workers: WORKERS, ..LIMITS })
}

fn site(planner: Planner) -> Site {
    let router = Router::new()
        .route("/{token}/", drawn(html::page))
        .route("/{token}/plan", drawn(html::plan))
        .route("/{token}/auto", drawn(html::auto))
        .route("/{token}/planner.js", file("text/javascript; charset=utf-8", include_str!("../planner.js")))
        .with_state(Arc::new(planner));
    Site { router, form_action: "'self'" }
}

/// Returns a handler that answers a query with the HTML from `draw`. An invalid query, such as a query that contains a
/// field twice, counts as empty.
fn drawn(draw: fn(&Planner, &PlannerQuery) -> String) -> MethodRouter<Arc<Planner>> {
    get(move |State(planner): State<Arc<Planner>>, query: Result<Query<PlannerQuery>, QueryRejection>| async move {
        let query = query.map(|Query(query)| query).unwrap_or_default();
        match tokio::task::spawn_blocking(move || draw(&planner, &query)).await {
            Ok(html) => Html(html).into_response(),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    })
}

#[cfg(test)]
mod tests;
