//! The ends where rows enter and leave, each behind the traits of [`crate::exec::source`].
