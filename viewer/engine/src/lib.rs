//! The worker of the dashboard.
