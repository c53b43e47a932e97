//! Anonymous memory files.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::MemfdFlags;
use rustix::io::Errno;

use crate::error::Error;

/// Makes an empty, close-on-exec, sealable memfd. `name` is seen in /proc only.
pub(crate) fn create(name: &str) -> Result<OwnedFd, Error> {
    /// Kernels before 6.3 do not know `MFD_NOEXEC_SEAL`, later ones may insist on it.
    static OLD_KERNEL: AtomicBool = AtomicBool::new(false);
    let doing = "creating shared memory (memfd_create)";
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // the kernel allows 249 bytes
    let short: String = name.chars().filter(|c| *c != '\0').take(60).collect();
    if !OLD_KERNEL.load(Ordering::Relaxed) {
        match rustix::fs::memfd_create(short.as_str(), flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => OLD_KERNEL.store(true, Ordering::Relaxed),
            other => return other.map_err(|e| Error::io(doing, e.into())),
        }
    }
    rustix::fs::memfd_create(short.as_str(), flags).map_err(|e| Error::io(doing, e.into()))
}
