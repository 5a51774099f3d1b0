//! The coordinator and what stands on it: sessions, DDL, DML, reads and recovery.
//!
//! Deliberately absent: wire formats.

mod api;
pub mod coordinator;

pub use api::{
    Answer, Column, Engine, EngineConfig, JobInfo, Notice, Scan, ScanRequest, Session, Tag,
    ViewInfo,
};
