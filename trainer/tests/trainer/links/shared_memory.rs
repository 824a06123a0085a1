//! Tests of shared memory: the names of its ring buffers, and links without room for a ring.

use std::fs::File;
use std::io::Read;
use std::net::TcpListener;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use stagecoach_api::job::Transport;
use stagecoach_transport::{LinksConfig, open_links};
use tch::Kind;

use super::{BACKWARD, FORWARD, config, group, group_of, tensor};

#[test]
fn no_name_is_left_in_shared_memory() {
    let name = format!("names/{}", std::process::id());
    let _links = group_of(2, false, |config| LinksConfig { group: name.clone(), transport: Transport::Shm, ..config });
    assert_eq!(names_in_shared_memory(&name), 0);
}

/// A stage that is killed before its peer has mapped the ring leaves the ring's name in the folder of shared memory.
#[test]
fn the_ring_of_a_killed_stage_is_removed_by_the_next_one() {
    let group_name = format!("killed/{}", std::process::id());
    let hash = blake3::hash(group_name.as_bytes()).to_hex();
    let locked = |what: &str| {
        let path = Path::new("/dev/shm").join(format!("stagecoach-{}-{what}", &hash[..16]));
        loop {
            let file = File::create_new(&path).unwrap();
            flock(&file, FlockOperation::LockExclusive).unwrap();
            // another test may have removed the ring before it was locked
            if path.exists() {
                return (path, file);
            }
        }
    };
    let ((dead, lock), (alive, _lock)) = (locked("dead"), locked("alive"));
    drop(lock); // as the kernel does for a process that has ended
    drop(group(2, Transport::Auto, 4096, false));
    let found = [&dead, &alive].map(|path| path.exists());
    std::fs::remove_file(alive).unwrap();
    assert_eq!(found, [false, true]);
}

/// Returns the number of rings of a group that still have a name in the folder of shared memory.
fn names_in_shared_memory(group: &str) -> usize {
    let its = format!("stagecoach-{}-", &blake3::hash(group.as_bytes()).to_hex()[..16]);
    let names = std::fs::read_dir("/dev/shm").unwrap().flatten();
    names.filter(|entry| entry.file_name().to_string_lossy().starts_with(&its)).count()
}

/// A ring of 128 TiB exceeds any folder of shared memory.
#[test]
fn links_without_room_in_shared_memory_are_named_and_work() {
    let mut links = group(2, Transport::Auto, 1 << 45, false);
    assert_eq!(links[0].without_ring.keys().collect::<Vec<_>>(), [&FORWARD]);
    assert_eq!(links[1].without_ring.keys().collect::<Vec<_>>(), [&BACKWARD]);
    links[0].senders[&FORWARD].send(0, tensor(3, 2, 3)).unwrap();
    let receiver = links[1].receivers.get_mut(&FORWARD).unwrap();
    receiver.post(0, &[2, 3, 8], Kind::Float);
    assert_eq!(receiver.wait(0).unwrap(), tensor(3, 2, 3));
    assert!(group(2, Transport::Auto, 4096, false).iter().all(|links| links.without_ring.is_empty()));
}

#[test]
fn a_greeting_that_fails_leaves_no_name_in_shared_memory() {
    let name = format!("greets/{}", std::process::id());
    let link_ids = [FORWARD];
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses: Vec<String> = listeners.iter().map(|l| l.local_addr().unwrap().to_string()).collect();
    let [own, others] = listeners;
    std::thread::scope(|scope| {
        let config = LinksConfig { group: name.clone(), ..config(0, own, &addresses, &link_ids, Transport::Shm) };
        let opening = scope.spawn(|| open_links(config));
        let (mut greeting, _) = others.accept().unwrap();
        // the first bytes of the greeting arrive once the ring exists
        greeting.read_exact(&mut [0]).unwrap();
        // other stages remove abandoned rings, but not this one
        drop(group(2, Transport::Auto, 4096, false));
        assert_eq!(names_in_shared_memory(&name), 1);
        drop(greeting);
        let error = opening.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("no answer from stage 1"), "{error}");
    });
    assert_eq!(names_in_shared_memory(&name), 0);
}
