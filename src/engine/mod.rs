//! The coordinator and what stands on it: sessions, DDL, DML, reads and recovery.
//!
//! Deliberately absent: wire formats.

pub mod coordinator;
mod api;

pub use api::{
    Answer, Column, Engine, EngineConfig, JobInfo, Notice, Scan, ScanRequest, Session, Tag, ViewInfo,
};
