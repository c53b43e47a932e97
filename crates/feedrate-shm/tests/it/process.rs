//! Process handles and waiting.

use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use feedrate_shm::{Channel, Interest, PidFd, PollOutcome, poll, process_state};

#[test]
fn death_is_seen_by_the_handle() {
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let handle = PidFd::open(pid).unwrap();
    assert!(!handle.is_dead() && !handle.wait(Some(Duration::from_millis(10))));
    handle.send_signal(libc::SIGSTOP).unwrap();
    let begin = Instant::now();
    while process_state(pid) != Some('T') {
        assert!(begin.elapsed() < Duration::from_secs(30), "SIGSTOP had no effect");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!handle.is_dead(), "stopped is not dead");
    handle.send_signal(libc::SIGKILL).unwrap();
    assert!(handle.wait(None) && handle.is_dead());
    assert_eq!(process_state(pid), Some('Z'));
    child.wait().unwrap();
    assert!(handle.is_dead(), "dead also when it was waited for");
    assert!(handle.send_signal(libc::SIGKILL).is_err());
    assert_eq!(process_state(pid), None);
}

#[test]
fn impossible_processes_are_errors() {
    for pid in [0, -1, i32::MIN, i32::MAX] {
        assert!(PidFd::open(pid).is_err(), "{pid}");
    }
    let parent = PidFd::parent().unwrap();
    assert!(!parent.is_dead());
    assert!(parent.send_signal(12_345).is_err());
}

#[test]
fn poll_tells_what_is_ready() {
    let (a, b) = Channel::pair().unwrap();
    let (c, d) = Channel::pair().unwrap();
    let wait = |timeout| match poll(&[(b.as_fd(), Interest::READ), (d.as_fd(), Interest::BOTH)], timeout) {
        Ok(PollOutcome::Ready(ready)) => ready,
        other => panic!("{other:?}"),
    };
    let ready = wait(None);
    assert!(!ready[0].any() && ready[1].write && !ready[1].read && !ready[1].closed);
    a.send(b"x", None).unwrap();
    assert!(wait(Some(Duration::ZERO))[0].read);
    drop((a, c));
    let ready = wait(Some(Duration::MAX));
    assert!(ready[0].closed && ready[0].read && ready[1].closed);
    assert_eq!(
        poll(&[], Some(Duration::from_millis(1))).unwrap(),
        PollOutcome::Ready(Vec::new())
    );
}
