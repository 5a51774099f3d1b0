//! The wires: PostgreSQL's protocol and HTTP.
