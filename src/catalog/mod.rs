//! The objects of the database, what depends on what, and the durable log of DDL.
