//! Transactions of PostgreSQL behind a synchronous face.
