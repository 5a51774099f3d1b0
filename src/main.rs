//! clink.
fn main() {}
