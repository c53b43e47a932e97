//! Small questions to the system.

use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};

/// Ends the process at once: no destructors, no exit handlers, no flushing. For a worker whose parent is dead.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes any code and does not return.
    unsafe { libc::_exit(code) }
}

/// Closes a descriptor by its number: for a forked child, whose copies of its parent's objects must not be dropped (they would
/// do more than close) and whose parent's ends must not stay open.
pub fn close_inherited(fd: std::os::fd::RawFd) {
    // SAFETY: the caller lists descriptors that its parent owned at the fork; in the child nothing else uses them, since the
    // objects that hold them are never used or dropped there.
    drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) });
}

/// Names the calling thread for debuggers and `top`; at most 15 bytes are kept, and failing is of no consequence.
pub fn set_thread_name(name: &str) {
    let short: Vec<u8> = name.bytes().filter(|byte| *byte != 0).take(15).collect();
    if let Ok(name) = CString::new(short) {
        let _ = rustix::thread::set_name(&name);
    }
}

/// The state letter of a process as in `/proc/<pid>/stat`: `T` stopped, `t` traced, `Z` dead and not waited for, `D` in the
/// kernel, and so on. None when there is no such process.
pub fn process_state(pid: i32) -> Option<char> {
    state_of(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn state_of(stat: &str) -> Option<char> {
    // the name, in parentheses, may itself contain spaces and parentheses
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// The smallest memory limit, in bytes, of the control groups (version 2 or 1) that this process is in. None when there is
/// none, or it cannot be read.
pub fn memory_limit() -> Option<u64> {
    let groups = Groups::of_this_process()?;
    groups
        .dirs("memory.max", "memory.limit_in_bytes")
        .filter_map(|file| limit(&read(&file)?))
        .min()
}

/// How many processes of this control group the kernel has killed for want of memory. None when it cannot be read.
pub fn oom_kills() -> Option<u64> {
    let groups = Groups::of_this_process()?;
    groups
        .dirs("memory.events", "memory.oom_control")
        .find_map(|file| kills(&read(&file)?))
}

fn read(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok()
}

fn limit(text: &str) -> Option<u64> {
    // "max" in version 2, an astronomic number in version 1
    text.trim().parse().ok().filter(|bytes| *bytes < 1 << 60)
}

fn kills(text: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// Where this process's memory group is: the mount point and the path below it.
#[derive(Debug, PartialEq, Eq)]
struct Groups {
    mount: PathBuf,
    path: PathBuf,
    unified: bool,
}

impl Groups {
    fn of_this_process() -> Option<Self> {
        Self::parse(
            &fs::read_to_string("/proc/self/cgroup").ok()?,
            Path::new("/sys/fs/cgroup"),
        )
    }

    fn parse(text: &str, root: &Path) -> Option<Self> {
        let lines = || {
            text.lines().filter_map(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                Some((parts.next()?, parts.next()?))
            })
        };
        let old = lines().find(|(names, _)| names.split(',').any(|name| name == "memory"));
        let (path, unified) = match old {
            Some((_, path)) => (path, false),
            None => (lines().find(|(names, _)| names.is_empty())?.1, true),
        };
        let mount = if unified { root.to_owned() } else { root.join("memory") };
        Some(Self {
            mount,
            path: PathBuf::from(path.trim_start_matches('/')),
            unified,
        })
    }

    /// The file of this name in the group and in all groups above it, the innermost first. In a container the path may be
    /// that of the host, which does not exist here; the mount point itself is then the group.
    fn dirs(&self, unified: &str, old: &str) -> impl Iterator<Item = PathBuf> {
        let name = if self.unified { unified } else { old };
        self.path
            .ancestors()
            .map(|path| self.mount.join(path).join(name))
            .collect::<Vec<_>>()
            .into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_follows_the_last_parenthesis() {
        assert_eq!(state_of("17 (a) T (b) S 1 17 17"), Some('S'));
        assert_eq!(state_of("17 (x"), None);
        let here = process_state(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!("RSD".contains(here), "{here}"); // of the main thread, which waits for the tests
        assert_eq!(process_state(-1), None);
    }

    #[test]
    fn both_versions_of_control_groups() {
        let root = Path::new("/c");
        let two = Groups::parse("0::/a/b\n", root).unwrap();
        let files: Vec<_> = two.dirs("memory.max", "x").collect();
        assert_eq!(
            files,
            ["/c/a/b/memory.max", "/c/a/memory.max", "/c/memory.max"].map(PathBuf::from)
        );
        let one = Groups::parse("5:cpu,cpuacct:/z\n4:memory:/d\n0::/a\n", root).unwrap();
        let files: Vec<_> = one.dirs("x", "memory.limit_in_bytes").collect();
        assert_eq!(
            files,
            ["/c/memory/d/memory.limit_in_bytes", "/c/memory/memory.limit_in_bytes"].map(PathBuf::from)
        );
        assert_eq!(Groups::parse("", root), None);
    }

    #[test]
    fn numbers_in_control_files() {
        assert_eq!(limit("max\n"), None);
        assert_eq!(limit("9223372036854771712\n"), None);
        assert_eq!(limit("67108864\n"), Some(64 << 20));
        assert_eq!(kills("low 0\noom 3\noom_kill 2\n"), Some(2));
        assert_eq!(kills("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"), Some(7));
        assert_eq!(kills("oom_kill_disable 0\n"), None);
    }
}
