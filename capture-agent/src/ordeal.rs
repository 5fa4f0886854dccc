//! A hundred snapshots and a server that has every bad moment there is: each arrives, whole, once.
//!
//! Only for tests. The real courier, the real outbox, the real client; timeouts and waits are short.

use std::{
    io::{self, Write as _},
    num::NonZeroU64,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tempfile::TempDir;
use tidegauge_api::{Place, Sidecar};

use crate::{
    connection::{Connection, Timeouts},
    courier::{Courier, Parcel},
    fake_gauge::{FakeGauge, Fault},
    notices::Notices,
    outbox::{Draft, Outbox},
    parts::InParts,
    push::Server,
    recorder::Unwritten,
    settings::SentBy,
};

const N_SNAPSHOTS: u64 = 100;

/// Nothing in these stories goes on for so long; past it they have failed.
const PATIENCE: Duration = Duration::from_secs(120);

struct Content(Vec<u8>);

impl Unwritten for Content {
    fn write(self: Box<Self>, mut draft: Draft, _: &mut Sidecar) -> io::Result<Draft> {
        draft.write_all(&self.0)?;
        Ok(draft)
    }
}

/// Every seventh does not get smaller and is large enough to travel in parts.
fn content(step: u64) -> Vec<u8> {
    let mut content = b"\x80\x04}".to_vec();
    content.extend(step.to_le_bytes());
    if step.is_multiple_of(7) {
        let mut noise = vec![0; 60_000];
        blake3::Hasher::new().update(&step.to_le_bytes()).finalize_xof().fill(&mut noise);
        content.extend(noise);
    }
    content
}

fn server(gauge: &FakeGauge) -> Server {
    let timeouts = Timeouts { connect: Duration::from_secs(5), idle: Duration::from_millis(300) };
    let mut server = Server::connect(&Connection { timeouts, ..Connection::to(&gauge.address) }).unwrap();
    server.in_parts = InParts { from_bytes: 50_000, part_bytes: 16_000 };
    server
}

/// Every other request meets a bad moment, in an order that has no rhythm and is the same each time.
fn faults() -> Vec<(usize, Fault)> {
    let kinds = [
        Fault::Status("429 Too Many Requests\r\nRetry-After: 0"),
        Fault::Status("500 Internal Server Error"),
        Fault::Status("503 Busy\r\nRetry-After: 0"),
        Fault::CutBeforeBody,
        Fault::CutInBody,
        Fault::CutAfterBody,
    ];
    let mut dice = blake3::Hasher::new().finalize_xof();
    let mut throw = || {
        let mut die = [0];
        dice.fill(&mut die);
        usize::from(die[0]) % (2 * kinds.len())
    };
    let mut faults: Vec<_> = (0..2000).filter_map(|n| Some((n, *kinds.get(throw())?))).collect();
    // Each costs the client its whole patience.
    faults.extend((30..600).step_by(60).map(|n| (n, Fault::Hang)));
    faults
}

#[test]
fn a_hundred_snapshots_arrive_once_and_whole_at_a_server_with_every_bad_moment() {
    let gauge = FakeGauge::start(&faults());
    let folder = TempDir::new().unwrap();
    let outbox = Outbox::open(folder.path(), "gpt", "host-7", u64::MAX).unwrap();
    let notices = Arc::new(Notices::new(|_| {}));
    let courier = Courier::start_retrying_after(
        Duration::from_millis(1)..Duration::from_millis(5),
        outbox,
        server(&gauge),
        SentBy::Itself,
        notices,
    )
    .unwrap();
    for step in 1..=N_SNAPSHOTS {
        // The training thread waits for the disk here, for nobody else: nothing in `carry` knows of the network.
        assert!(courier.has_room(PATIENCE));
        let place = Place { run: Some("gpt".to_owned()), last_step: Some(step), ..Place::default() };
        let sidecar = Sidecar { sidecar: 1, place, ..Sidecar::default() };
        courier.carry(Parcel {
            unwritten: Box::new(Content(content(step))),
            sidecar,
            name: format!("step{step}"),
        });
    }
    // Training is done long before the server is.
    assert!(gauge.taken().len() < 100);
    let left = courier.stop(PATIENCE);
    assert_eq!((left.n_snapshots, left.n_unwritten, left.n_lost), (0, 0, 0));

    let mut taken = gauge.taken();
    taken.sort_by_key(|taken| taken.sidecar.place.last_step);
    let steps: Vec<_> = taken.iter().map(|taken| taken.sidecar.place.last_step.unwrap()).collect();
    assert_eq!(steps, (1..=N_SNAPSHOTS).collect::<Vec<_>>());
    for taken in &taken {
        let step = taken.sidecar.place.last_step.unwrap();
        assert!(zstd::decode_all(taken.bytes.as_slice()).unwrap() == content(step), "step {step}");
    }
    // The story was told: answers were lost, uploads went on, and nothing is left behind.
    assert!(gauge.n_repeats() > 0, "no answer was lost");
    assert!(gauge.heads().iter().any(|head| head.starts_with("HEAD ")), "no upload went on");
    assert!(gauge.heads().len() > 300, "{} requests", gauge.heads().len());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn what_is_sent_keeps_below_the_rate() {
    let gauge = FakeGauge::start(&[]);
    let rate = NonZeroU64::new(200_000);
    let server = Server::connect(&Connection { rate, ..Connection::to(&gauge.address) }).unwrap();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("a.pickle");
    std::fs::write(&file, content(7)).unwrap();
    let largest = AtomicU64::new(0);
    let mut progress = |bytes| {
        largest.fetch_max(bytes, Ordering::Relaxed);
    };
    server.send(&file, &Sidecar::default(), &mut progress).unwrap();
    // It leaves in pieces, each paid for: see the throttle's own test for what that takes.
    assert_eq!((gauge.taken()[0].bytes.len(), largest.into_inner()), (content(7).len(), 50_000));
}
