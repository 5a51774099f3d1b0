//! Sizes of memory: as flags and as the machine has it.

use std::path::Path;

/// What is assumed when the machine does not tell.
const FALLBACK_BYTES: u64 = 1 << 30;

/// Bytes of a size such as `4GiB`, `512MB` or `1073741824`.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    let invalid = || format!("'{text}' is no size: use a number with B, kB, MB, GB, TB, KiB, MiB, GiB or TiB");
    let trimmed = text.trim();
    let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = trimmed.split_at(digits);
    let number: u64 = number.parse().map_err(|_| invalid())?;
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return Err(invalid()),
    };
    const BYTES_MIN: u64 = 16 << 20;
    match number.checked_mul(factor) {
        Some(bytes) if bytes >= BYTES_MIN => Ok(bytes),
        Some(_) => Err(format!("'{text}' is too little: at least 16MiB")),
        None => Err(invalid()),
    }
}

/// 70 % of the machine's memory, or of the cgroup's limit when that is lower.
pub(super) fn default_budget() -> u64 {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| meminfo_total(&text));
    let limits = cgroup_files().into_iter().filter_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok());
    let bytes = machine.into_iter().chain(limits).min().unwrap_or(FALLBACK_BYTES);
    bytes / 10 * 7
}

fn meminfo_total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The files that may hold a limit: of both versions, and of each cgroup above ours.
fn cgroup_files() -> Vec<std::path::PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let mut files = vec![root.join("memory.max"), root.join("memory/memory.limit_in_bytes")];
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    if let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::/")) {
        let full = root.join(path);
        files.extend(full.ancestors().take_while(|p| p.starts_with(root)).map(|p| p.join("memory.max")));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("4GiB"), Ok(4 << 30));
        assert_eq!(parse_size("512MB"), Ok(512_000_000));
        assert_eq!(parse_size("1073741824"), Ok(1 << 30));
        for text in ["", "GiB", "4 G", "-1GB", "1.5GiB", "99999999TiB", "1kB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_machine_tells_its_memory() {
        assert_eq!(meminfo_total("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert!(default_budget() > 0);
    }
}
