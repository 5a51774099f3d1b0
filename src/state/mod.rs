//! Where operators keep what they know.
