//! Messages and payloads.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use feedrate_shm::{Channel, Error, RecvError, SendError, payload_fd, read_payload};

const EMPTY: [u8; Channel::MAX] = [0; Channel::MAX];

#[test]
fn messages_keep_their_bounds() {
    let (a, b) = Channel::pair().unwrap();
    let mut buffer = EMPTY;
    assert!(matches!(b.try_recv(&mut buffer), Err(RecvError::WouldBlock)));
    for len in [1, 17, Channel::MAX] {
        a.try_send(&vec![7; len], None).unwrap();
    }
    for len in [1, 17, Channel::MAX] {
        let received = b.try_recv(&mut buffer).unwrap();
        assert!(received.len == len && received.fd.is_none());
        assert!(buffer[..len].iter().all(|byte| *byte == 7));
    }
    for len in [0, Channel::MAX + 1] {
        assert!(matches!(a.try_send(&vec![0; len], None), Err(SendError::Length(found)) if found == len));
    }
}

#[test]
fn a_descriptor_travels_and_is_close_on_exec() {
    let (a, b) = Channel::pair().unwrap();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    a.send(b"pipe", Some(writer.as_fd())).unwrap();
    writer.write_all(b"before ").unwrap();
    drop(writer);
    let mut buffer = EMPTY;
    let fd = b.recv(&mut buffer).unwrap().fd.unwrap();
    assert!(
        rustix::io::fcntl_getfd(&fd)
            .unwrap()
            .contains(rustix::io::FdFlags::CLOEXEC)
    );
    let mut copy = File::from(fd);
    copy.write_all(b"and after").unwrap();
    drop(copy);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before and after");
}

#[test]
fn a_full_peer_blocks_and_a_closed_one_is_told() {
    let (a, b) = Channel::pair().unwrap();
    let mut sent = 0u32;
    loop {
        match a.try_send(&sent.to_le_bytes(), None) {
            Ok(()) => sent += 1,
            Err(SendError::WouldBlock) => break,
            Err(e) => panic!("{e}"),
        }
    }
    assert!(sent > 16, "{sent} messages fit");
    let reader = thread::spawn(move || {
        let mut buffer = EMPTY;
        for expected in 0..=sent {
            let received = b.recv(&mut buffer).unwrap();
            assert_eq!(buffer[..received.len], expected.to_le_bytes());
        }
        b
    });
    a.send(&sent.to_le_bytes(), None).unwrap(); // waits for the reader
    let b = reader.join().unwrap();
    a.send(b"last", None).unwrap();
    drop(a);
    let mut buffer = EMPTY;
    assert_eq!(
        b.recv(&mut buffer).unwrap().len,
        4,
        "what was sent before closing arrives"
    );
    assert!(matches!(b.recv(&mut buffer), Err(RecvError::Closed)));
    assert!(matches!(b.try_send(b"x", None), Err(SendError::Closed)));
    assert!(matches!(b.send(b"x", None), Err(SendError::Closed)));
}

#[test]
fn payloads_of_any_length_cross_unchangeable() {
    for len in [0, 1, 4096, 1_000_003] {
        let bytes: Vec<u8> = (0u8..251).cycle().take(len).collect();
        let fd = payload_fd(&bytes).unwrap();
        let mut file = File::from(fd.try_clone().unwrap());
        assert!(file.write_all(b"x").is_err() && file.set_len(7).is_err());
        assert_eq!(&*read_payload(fd).unwrap(), bytes);
    }
}

#[test]
fn other_descriptors_are_no_payload() {
    let unsealed = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    for fd in [unsealed, OwnedFd::from(File::open("/dev/null").unwrap())] {
        let refused = read_payload(fd).unwrap_err();
        assert!(
            matches!(refused, Error::Payload { .. }) && refused.is_protocol(),
            "{refused}"
        );
    }
}

/// A worker that is killed has tasks in its queue that it never read; what it had sent before still arrives.
#[test]
fn what_a_dead_peer_had_sent_arrives() {
    let (a, b) = Channel::pair().unwrap();
    let mut buf = [0; Channel::MAX];
    b.try_send(b"done 1", None).unwrap();
    b.try_send(b"done 2", None).unwrap();
    a.try_send(b"never read", None).unwrap();
    drop(b);
    for expected in [&b"done 1"[..], b"done 2"] {
        let len = a.try_recv(&mut buf).unwrap().len;
        assert_eq!(&buf[..len], expected);
    }
    assert!(matches!(a.try_recv(&mut buf), Err(RecvError::Closed)));
    assert!(matches!(a.try_recv(&mut buf), Err(RecvError::Closed)));
}
