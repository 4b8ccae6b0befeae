//! Figures of this process from the system. Linux only; elsewhere there are none.

/// Figures of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Process {
    pub(crate) open_files: Option<u64>,
    pub(crate) open_files_max: Option<u64>,
    pub(crate) resident_bytes: Option<u64>,
    /// The part of the resident memory that files back. Most is the search index; the system can take
    /// it back.
    pub(crate) mapped_bytes: Option<u64>,
    pub(crate) cpu_seconds: Option<f64>,
    pub(crate) threads: Option<u64>,
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn read() -> Process {
    Process::default()
}

/// Reads the figures.
#[cfg(target_os = "linux")]
pub(crate) fn read() -> Process {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let (cpu_seconds, threads, resident_bytes) = of_stat(&stat);
    let files = std::fs::read_dir("/proc/self/fd").ok();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    Process {
        // One of them is the folder that is being read.
        open_files: files.map(|files| (files.count() as u64).saturating_sub(1)),
        open_files_max: limit.current,
        resident_bytes,
        mapped_bytes: mapped_of(&pages),
        cpu_seconds,
        threads,
    }
}

/// Returns processor time, threads and resident memory from a line of `/proc/PID/stat`.
#[cfg(target_os = "linux")]
fn of_stat(line: &str) -> (Option<f64>, Option<u64>, Option<u64>) {
    // The name in brackets may contain anything. The first field after it is number 3.
    let after_name = line.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = after_name.split(' ').collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let ticks = field(14).zip(field(15)).map(|(user, system)| user + system);
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let resident = field(24).map(|pages| pages * rustix::param::page_size() as u64);
    let seconds = ticks.map(|ticks| ticks as f64 / per_second as f64);
    (seconds, field(20), resident)
}

/// Returns the resident memory that files back from the line of `/proc/PID/statm`.
#[cfg(target_os = "linux")]
fn mapped_of(line: &str) -> Option<u64> {
    let pages = line.split(' ').nth(2)?.parse::<u64>().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    // A process may have any name, which must not shift the fields.
    #[test]
    fn process_name_does_not_shift_the_fields() {
        let line =
            "7 (a) b) S 1 7 7 0 -1 0 1 2 3 4 300 200 0 0 20 0 9 0 5 100 25 18446744073709551615 1";
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        let page = rustix::param::page_size() as u64;
        assert_eq!(
            of_stat(line),
            (Some(500.0 / per_second), Some(9), Some(25 * page))
        );
        assert_eq!(of_stat(""), (None, None, None));
    }

    #[test]
    fn figures_of_this_process_are_read() {
        let process = read();
        assert!(process.open_files > Some(0) && process.open_files < process.open_files_max);
        assert!(process.resident_bytes > Some(1 << 20) && process.threads > Some(0));
        assert!(process.cpu_seconds.is_some());
    }

    // Pages of the index look like a leak of memory, but the system can take them back.
    #[test]
    fn pages_of_files_are_told_apart() {
        let taken = vec![1_u8; 64 << 20];
        let process = read();
        drop(taken);
        let [resident, mapped] = [process.resident_bytes, process.mapped_bytes].map(Option::unwrap);
        assert!(mapped > 1 << 20, "the program's own file: {process:?}");
        assert!(resident - mapped >= 64 << 20, "{process:?}");
        assert_eq!(
            mapped_of("9 8 3 1 0 2 0"),
            Some(3 * rustix::param::page_size() as u64)
        );
        assert_eq!(mapped_of(""), None);
    }
}
