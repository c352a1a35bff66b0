//! What every store must do. Filled in by the suite below.
