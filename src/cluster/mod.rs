//! The cluster's API, as far as this run has business there: what it says of the node and of our Job, and what it is told.
//!
//! ```text
//! service account ─Account→ Api ─┬─ Facts::learn ──→ threshold, pull policy, proxy, our Job      at the start
//!                                ├─ Herald ────────→ annotations of our Job, events              during the run
//!                                └─ PinnedImageSet::apply                                        after it
//! ```
//!
//! All of it is a help and nothing of it is needed: what the API does not say in time is gone without, a Job that cannot be
//! annotated costs a line in the log, and no error here ends a run. Only the start waits, [`PATIENCE`] at most. What is asked is what [`RULES`] has and nothing
//! else. The token goes to the API server alone, whose certificate the service account's `ca.crt` must vouch for, and is in
//! no message. No proxy is between.

mod account;
mod annotations;
mod api;
mod error;
mod facts;
mod happening;
mod herald;
mod messenger;
mod own_job;
mod pace;
mod pin;
mod pull_verification;
mod rules;

pub use account::Account;
pub use api::Api;
pub use error::ClusterError;
pub use facts::{Authorities, ClusterProxy, Facts, PATIENCE};
pub use herald::Herald;
pub use own_job::{OwnJob, Owner};
pub use pace::INTERVAL;
pub use pin::PinnedImageSets;
pub use pull_verification::PullVerification;
pub use rules::{CONFIG_NAMESPACE, Place, RULES, Rule};
