//! Several processes: death, fork, limits, and what is left behind.
//!
//! Without the usual harness, because it must be single-threaded to fork. Arguments that are no options choose tests by a part
//! of their name. An alarm ends each process after five minutes: that is the watchdog of every wait in here.
#![cfg(all(target_os = "linux", not(loom)))]
#![expect(unsafe_code, reason = "forks, and reads through the pointers of leases")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(clippy::print_stdout, reason = "the report of the tests")]

use std::collections::VecDeque;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use feedrate_shm::testing::{Loopback, Transport};
use feedrate_shm::{
    Announce, Arena, ArenaOptions, Channel, Error, Lease, PidFd, RecvError, Slot, Token, View, exit_now, watch_parent,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const TESTS: &[(&str, fn())] = &[
    (
        "a_killed_writer_leaves_intact_leases",
        a_killed_writer_leaves_intact_leases,
    ),
    ("nothing_grows_and_nothing_is_left", nothing_grows_and_nothing_is_left),
    (
        "a_fork_of_the_reader_retires_its_leases",
        a_fork_of_the_reader_retires_its_leases,
    ),
    (
        "a_fork_of_the_writer_retires_its_handles",
        a_fork_of_the_writer_retires_its_handles,
    ),
    (
        "a_child_cannot_use_its_parents_objects",
        a_child_cannot_use_its_parents_objects,
    ),
    ("a_child_has_its_own_arenas", a_child_has_its_own_arenas),
    (
        "an_abandoned_lease_costs_its_slot_only",
        an_abandoned_lease_costs_its_slot_only,
    ),
    (
        "no_descriptor_left_is_an_error_that_says_so",
        no_descriptor_left_is_an_error_that_says_so,
    ),
    ("the_death_of_the_parent_is_noticed", the_death_of_the_parent_is_noticed),
];

fn main() {
    let options: Vec<String> = std::env::args().skip(1).filter(|arg| arg.starts_with('-')).collect();
    if options.iter().any(|option| option == "--list") {
        // What cargo-nextest asks first; none of ours is ignored.
        for (name, _) in TESTS
            .iter()
            .filter(|_| options.iter().all(|option| option != "--ignored"))
        {
            println!("{name}: test");
        }
        return;
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    watchdog();
    for (name, test) in TESTS {
        if wanted.is_empty() || wanted.iter().any(|part| name.contains(part)) {
            println!("test {name} ...");
            test();
        }
    }
    println!("all passed");
}

/// Ends this process, if it still runs in five minutes.
fn watchdog() {
    // SAFETY: there is no handler: the signal's default action ends the process.
    unsafe { libc::alarm(300) };
}

/// Runs the block in a child, which then ends with 0; a panic unwinds it through `main`, which ends it with 101. What the block
/// uses stays the parent's as well.
macro_rules! child {
    ($body:block) => {{
        // SAFETY: this program has one thread here, so the child is whole.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork");
        if pid == 0 {
            watchdog();
            $body
            exit_now(0);
        }
        (pid, PidFd::open(pid).unwrap())
    }};
}

/// Waits for a child and gives its exit code, or the negative signal.
fn join(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: our own child, waited for once.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        -libc::WTERMSIG(status)
    }
}

/// The writer of a process, as a worker has it.
struct Writer {
    arena: Arc<Arena>,
    channel: Channel,
}

impl Writer {
    fn new(channel: Channel, idle_bytes: usize) -> Self {
        let arena = Arena::new(ArenaOptions {
            name: "test-writer".to_owned(),
            idle_bytes,
        })
        .unwrap();
        Self { arena, channel }
    }

    fn announce(&self) {
        for announce in self.arena.take_announcements() {
            match announce {
                Announce::New { id, len, fd } => {
                    let message = [&b"n"[..], &id.to_le_bytes()[..], &(len as u64).to_le_bytes()].concat();
                    self.channel.send(&message, Some(fd.as_fd())).unwrap();
                }
                Announce::Gone { id } => {
                    self.channel
                        .send(&[&b"g"[..], &id.to_le_bytes()[..]].concat(), None)
                        .unwrap();
                }
            }
        }
    }

    fn send(&self, len: usize, byte: u8) {
        let slot = self.arena.reserve(len).unwrap();
        fill(&slot, byte);
        let token = slot.send().unwrap();
        self.announce();
        self.channel
            .send(&[&[b't', byte], &token.to_bytes()[..]].concat(), None)
            .unwrap();
    }
}

fn fill(slot: &Slot, byte: u8) {
    // SAFETY: reserved, with this length, and not sent.
    unsafe { slot.as_mut_ptr().write_bytes(byte, slot.len()) }
}

fn check(lease: &Lease, byte: u8) {
    // SAFETY: leased, with this length; the writers in here do not write after sending.
    let bytes = unsafe { std::slice::from_raw_parts(lease.as_ptr(), lease.len()) };
    assert!(bytes.iter().all(|found| *found == byte), "a lease of {byte} changed");
}

struct Reader {
    view: Arc<View>,
    channel: Channel,
}

impl Reader {
    /// The next batch: its lease and the byte that it is full of. None when the writer is gone.
    fn next(&self) -> Option<(Lease, u8)> {
        let mut buffer = [0; Channel::MAX];
        loop {
            let received = match self.channel.recv(&mut buffer) {
                Ok(received) => received,
                Err(RecvError::Closed) => return None,
                Err(e) => panic!("{e}"),
            };
            let id = || u32::from_le_bytes(buffer[1..5].try_into().unwrap());
            match (buffer[0], received.fd) {
                (b'n', Some(fd)) => {
                    let len = u64::from_le_bytes(buffer[5..13].try_into().unwrap());
                    self.view.add(id(), usize::try_from(len).unwrap(), fd).unwrap();
                }
                (b'g', None) => assert!(self.view.remove(id())),
                (b't', None) => {
                    let token = Token::from_bytes(buffer[2..26].try_into().unwrap());
                    return Some((self.view.lease(token).unwrap(), buffer[1]));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn named_shared_memory() -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> = fs::read_dir("/dev/shm")
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.retain(|name| name.to_string_lossy().contains("feedrate") || name.to_string_lossy().contains("test-writer"));
    names
}

fn a_killed_writer_leaves_intact_leases() {
    let (ours, theirs) = Channel::pair().unwrap();
    let (pid, handle) = child!({
        let writer = Writer::new(theirs, 1 << 20);
        for round in 0u32.. {
            writer.send(if round % 3 == 0 { 2 << 20 } else { 3000 }, round.to_le_bytes()[0]);
        }
    });
    drop(theirs);
    let reader = Reader {
        view: View::new(),
        channel: ours,
    };
    let mut leases: Vec<_> = (0..50).map(|_| reader.next().unwrap()).collect();
    handle.send_signal(libc::SIGKILL).unwrap();
    assert!(handle.wait(Some(Duration::from_secs(60))), "SIGKILL was sent");
    assert_eq!(join(pid), -libc::SIGKILL);
    // what was under way when it died still arrives, then the end
    leases.extend(std::iter::from_fn(|| reader.next()));
    for (lease, byte) in &leases {
        check(lease, *byte);
        // SAFETY: leased: batches are writable.
        unsafe { lease.as_mut_ptr().write_bytes(*byte, lease.len()) };
    }
    let view = Arc::clone(&reader.view);
    drop(reader);
    let half = leases.split_off(leases.len() / 2);
    std::thread::spawn(move || drop(half)).join().unwrap();
    for (lease, byte) in &leases {
        check(lease, *byte);
    }
    drop(leases);
    assert!(view.mapped_bytes() > 0, "the view still has the segments");
    for id in 1..10_000 {
        view.remove(id);
    }
    assert_eq!(view.mapped_bytes(), 0);
}

fn nothing_grows_and_nothing_is_left() {
    let before = descriptors();
    let (ours, theirs) = Channel::pair().unwrap();
    let (go, wait) = Channel::pair().unwrap();
    let (pid, handle) = child!({
        let writer = Writer::new(theirs, 4 << 20);
        let mut buffer = [0; Channel::MAX];
        let mut most = 0;
        let mut opened = 0;
        for round in 0u32..600 {
            wait.recv(&mut buffer).unwrap();
            writer.send(
                round.wrapping_mul(2_654_435_761) as usize % 3_000_000 + 1,
                round.to_le_bytes()[0],
            );
            if round == 200 {
                opened = descriptors();
            }
            most = writer.arena.stats().mapped_bytes.max(most);
        }
        assert_eq!(descriptors(), opened, "the writer keeps no descriptor for its segments");
        // four leases of at most 3 MB: by capacity at most four times that, with as much idle, and the slabs below 1 MiB
        assert!(most < 160 << 20, "the arena grew to {most} bytes");
        // the reader has let go of all but one; nobody needs to ask for it by name
        wait.recv(&mut buffer).unwrap();
        writer.arena.balance();
        let stats = writer.arena.stats();
        assert!(stats.leased_slots == 1 && stats.free_bytes <= 4 << 20, "{stats:?}");
        writer.send(1, 0);
    });
    drop(theirs);
    let reader = Reader {
        view: View::new(),
        channel: ours,
    };
    let mut window = VecDeque::new();
    let mut opened = 0;
    for round in 0..600 {
        go.send(b"x", None).unwrap();
        window.push_back(reader.next().unwrap());
        if window.len() > 4 {
            let (lease, byte) = window.pop_front().unwrap();
            check(&lease, byte);
        }
        if round == 200 {
            opened = descriptors();
        }
    }
    assert_eq!(descriptors(), opened, "the reader keeps no descriptor for its segments");
    assert!(named_shared_memory().is_empty());
    window.drain(..3);
    assert_eq!(window.len(), 1);
    go.send(b"x", None).unwrap();
    let (last, _) = reader.next().unwrap();
    assert!(
        reader.view.mapped_bytes() < 48 << 20,
        "{} bytes are mapped",
        reader.view.mapped_bytes()
    );
    assert!(reader.next().is_none());
    assert_eq!(join(pid), 0);
    check(&window[0].0, window[0].1);
    let view = Arc::clone(&reader.view);
    drop((reader, go, wait, handle));
    assert_eq!(descriptors(), before);
    drop((view, window, last));
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("test-writer"), "a segment is still mapped");
    assert!(named_shared_memory().is_empty());
}

/// Hands one slot over, forks a child that keeps looking at it, and lets go of it.
fn a_fork_of_the_reader_retires_its_leases() {
    for len in [3000, 2 << 20] {
        let pair = Loopback::new(0).unwrap();
        let slot = pair.arena.reserve(len).unwrap();
        fill(&slot, 42);
        let lease = pair.hand_over(&slot).unwrap();
        drop(slot);
        let (go, wait) = Channel::pair().unwrap();
        let (pid, _handle) = child!({
            drop(go);
            let mut buffer = [0; Channel::MAX];
            wait.recv(&mut buffer).unwrap();
            check(&lease, 42);
            drop(lease); // in the child: nothing happens to the slot
        });
        drop((lease, wait));
        assert_eq!(pair.arena.stats().retired_slots, 1, "let go of after the fork");
        for round in 0..100 {
            let other = pair.arena.reserve(len).unwrap();
            fill(&other, round);
            drop(pair.hand_over(&other).unwrap());
        }
        go.send(b"look", None).unwrap();
        assert_eq!(join(pid), 0, "the child saw other contents");
        pair.trim();
        assert_eq!(
            pair.footprint(),
            0,
            "a segment goes when only retired slots are left in it"
        );
    }
}

fn a_fork_of_the_writer_retires_its_handles() {
    let pair = Loopback::new(64 << 20).unwrap();
    let (before, across) = (pair.arena.reserve(5000).unwrap(), pair.arena.reserve(5000).unwrap());
    drop(before);
    let addr = across.addr();
    fill(&across, 9);
    let (go, wait) = Channel::pair().unwrap();
    let (pid, _handle) = child!({
        drop(go);
        wait.recv(&mut [0; Channel::MAX]).unwrap();
        // SAFETY: the handle was alive at the fork, so this memory is not reused.
        assert_eq!(unsafe { *std::ptr::with_exposed_provenance::<u8>(addr) }, 9);
    });
    let lease = pair.hand_over(&across).unwrap();
    drop(across);
    drop(lease);
    assert_eq!(pair.arena.stats().retired_slots, 1);
    let more: Vec<_> = (0..200).map(|_| pair.arena.reserve(5000).unwrap()).collect();
    for slot in &more {
        fill(slot, 1);
    }
    go.send(b"look", None).unwrap();
    assert_eq!(join(pid), 0);
}

fn a_child_cannot_use_its_parents_objects() {
    let pair = Loopback::new(1 << 20).unwrap();
    let slot = pair.arena.reserve(100).unwrap();
    let at = pair.arena.locate(slot.addr(), 100).unwrap();
    let sent = pair.arena.reserve(100).unwrap();
    let token = sent.send().unwrap();
    pair.announce().unwrap();
    let before = pair.arena.stats();
    let (pid, _handle) = child!({
        assert!(matches!(pair.arena.reserve(100), Err(Error::Forked)));
        assert!(matches!(pair.arena.send(&at), Err(Error::Forked)));
        assert!(matches!(slot.send(), Err(Error::Forked)));
        assert!(matches!(pair.view.lease(token), Err(Error::Forked)));
        assert!(pair.arena.locate(at.offset, 1).is_none() && !pair.arena.unsend(&token) && !pair.view.remove(1));
        assert!(pair.arena.take_announcements().is_empty() && !pair.arena.balance());
        pair.arena.trim();
    });
    assert_eq!(join(pid), 0);
    assert_eq!(pair.arena.stats(), before, "the child changed nothing");
    drop(pair.view.lease(token).unwrap());
}

fn a_child_has_its_own_arenas() {
    let _parents = Loopback::new(1 << 20).unwrap();
    let (pid, _handle) = child!({
        feedrate_shm::testing::arena_conformance(|idle_bytes| Loopback::new(idle_bytes).unwrap());
    });
    assert_eq!(join(pid), 0);
}

fn an_abandoned_lease_costs_its_slot_only() {
    let pair = Loopback::new(0).unwrap();
    let (lost, kept) = (pair.arena.reserve(3000).unwrap(), pair.arena.reserve(3000).unwrap());
    let addr = lost.addr();
    pair.hand_over(&lost).unwrap().abandon();
    drop((lost, pair.hand_over(&kept).unwrap(), kept));
    assert_eq!(pair.arena.stats().leased_slots, 1);
    for _ in 0..100 {
        assert_ne!(pair.arena.reserve(3000).unwrap().addr(), addr);
    }
    pair.arena.reserve(3000).unwrap().abandon();
    assert_eq!(pair.arena.stats().local_slots, 1);
    pair.trim();
    assert_eq!(pair.arena.stats().segments, 1);
}

fn no_descriptor_left_is_an_error_that_says_so() {
    let pair = Loopback::new(1 << 20).unwrap();
    let (ours, theirs) = Channel::pair().unwrap();
    theirs.send(b"with a descriptor", Some(ours.as_fd())).unwrap();
    let limit = getrlimit(Resource::Nofile);
    // all numbers below the lowest free one are taken
    let open = u64::try_from(fs::File::open("/dev/null").unwrap().as_raw_fd()).unwrap();
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(open),
            maximum: limit.maximum,
        },
    )
    .unwrap();
    let refused = pair.arena.reserve(100).unwrap_err();
    let received = ours.recv(&mut [0; Channel::MAX]).unwrap_err();
    setrlimit(Resource::Nofile, limit).unwrap();
    assert!(
        matches!(refused, Error::FdLimit { limit: Some(found), .. } if found == open),
        "{refused:?}"
    );
    assert!(
        refused.is_resource() && refused.to_string().contains(&format!("{open} open files")),
        "{refused}"
    );
    assert!(matches!(received, RecvError::FdLimit), "{received:?}");
    pair.arena.reserve(100).unwrap();
    // Nothing is lost.
    let mut buffer = [0; Channel::MAX];
    let received = ours.recv(&mut buffer).unwrap();
    assert!(received.fd.is_some());
    assert_eq!(&buffer[..received.len], b"with a descriptor");
    assert!(matches!(ours.try_recv(&mut buffer), Err(RecvError::WouldBlock)));
}

fn the_death_of_the_parent_is_noticed() {
    let (ours, theirs) = Channel::pair().unwrap();
    let (pid, handle) = child!({
        drop(ours);
        let (_worker, _) = child!({
            watch_parent(PidFd::parent().unwrap(), || exit_now(0)).unwrap();
            // the thread names itself once it runs
            let blocked = loop {
                let named = fs::read_dir("/proc/self/task")
                    .unwrap()
                    .map(|task| fs::read_to_string(task.unwrap().path().join("status")).unwrap())
                    .find(|status| status.starts_with("Name:\tfeedrate-parent"));
                match named {
                    Some(status) => break status,
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            let mask = blocked.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
            let mask = u64::from_str_radix(mask, 16).unwrap();
            assert!(
                mask & (1 << (libc::SIGINT - 1)) != 0 && mask & (1 << (libc::SIGTERM - 1)) != 0,
                "{mask:x}"
            );
            let own = fs::read_to_string("/proc/thread-self/status").unwrap();
            assert!(
                own.lines().any(|line| line == "SigBlk:\t0000000000000000"),
                "our own mask is as before: {own}"
            );
            theirs.send(b"watching", None).unwrap();
            std::thread::sleep(Duration::from_secs(1000)); // a worker that is busy for ever
        });
        drop(theirs);
        std::thread::sleep(Duration::from_secs(1000));
    });
    let mut buffer = [0; Channel::MAX];
    drop(theirs);
    assert_eq!(ours.recv(&mut buffer).unwrap().len, 8);
    handle.send_signal(libc::SIGKILL).unwrap();
    assert_eq!(join(pid), -libc::SIGKILL);
    assert!(
        matches!(ours.recv(&mut buffer), Err(RecvError::Closed)),
        "the worker ended too"
    );
}
