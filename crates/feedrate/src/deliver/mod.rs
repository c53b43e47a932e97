//! Getting batches to the user: a bounded window of tasks in flight, put back into plan order, redone when workers die.
//!
//! [`Delivery`] ties a [`Plan`](crate::plan::Plan) to a [`Pool`](crate::work::Pool). There is one delivery for all pools.

mod delivery;
mod window;

pub use delivery::{Delivered, Delivery, Failure, FailureOf, Next};
pub use window::{Lost, Options};
