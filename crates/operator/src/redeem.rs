//! (stub of the lead, to be overwritten by the real pool)

/// A pool.
pub struct Pool;

impl Pool {
    /// Submits.
    pub fn submit(&self, _redeem: spanwire_plan::plan::Redeem) {}
}
