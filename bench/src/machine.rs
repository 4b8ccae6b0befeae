//! Describes the machine on which the figures were measured.

use std::{fs, path::Path, thread};

/// The properties of a machine.
#[derive(Clone, Debug)]
pub struct Machine {
    cores: usize,
    kernel: String,
    file_system: String,
    load: String,
}

impl Machine {
    /// Describes this machine. The file system is that of `dir`.
    #[must_use]
    pub fn with(dir: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let kernel = read("/proc/sys/kernel/osrelease");
        let load = read("/proc/loadavg");
        Self {
            cores: thread::available_parallelism().map_or(1, usize::from),
            kernel: format!("{} {}", std::env::consts::OS, kernel.trim())
                .trim_end()
                .to_owned(),
            file_system: file_system(&read("/proc/self/mounts"), dir),
            load: load
                .split(' ')
                .next()
                .filter(|load| !load.is_empty())
                .unwrap_or("unknown")
                .to_owned(),
        }
    }

    /// Formats the description as one line.
    #[must_use]
    pub fn line(&self) -> String {
        format!(
            "{} cores, {}, {}, load {} at the start, treering {} ({})",
            self.cores,
            self.kernel,
            self.file_system,
            self.load,
            env!("CARGO_PKG_VERSION"),
            build()
        )
    }

    /// Formats the description as one JSON object.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "machine": {
                "cores": self.cores,
                "kernel": self.kernel,
                "file_system": self.file_system,
                "load": self.load,
            },
            "version": env!("CARGO_PKG_VERSION"),
            "build": build(),
        })
    }
}

/// Names the build type, since figures of a debug build mean nothing.
fn build() -> &'static str {
    if cfg!(debug_assertions) {
        "debug build: figures mean nothing"
    } else {
        "release build"
    }
}

/// Returns the file system of the longest mount point that contains the folder.
fn file_system(mounts: &str, dir: &Path) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some((fields.next()?, fields.next()?))
        })
        .filter(|(place, _)| dir.starts_with(place))
        .max_by_key(|(place, _)| place.len())
        .map_or_else(
            || "unknown file system".to_owned(),
            |(_, kind)| kind.to_owned(),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reporting the root's file system for a folder on tmpfs would make every durable figure
    /// wrong.
    #[test]
    fn the_longest_mount_point_wins() {
        let mounts = "/dev/a / ext4 rw 0 0\ntmpfs /proc tmpfs rw 0 0\n";
        assert_eq!(file_system(mounts, Path::new("/proc")), "tmpfs");
        assert_eq!(file_system(mounts, Path::new("/")), "ext4");
        assert_eq!(file_system("", Path::new("/")), "unknown file system");
    }
}
