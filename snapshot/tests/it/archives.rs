//! Archives of snapshots, as Python's zipfile and tarfile make them.

use std::io::{Cursor, Write as _};
use std::ops::ControlFlow;

use rawzip::path::EntryPath;
use tidegauge_snapshot::read::archive::{self, Listing};
use tidegauge_snapshot::read::{ReadError, copy_content, open, open_file, recognize};

const PLAIN: &[u8] = include_bytes!("../../fixtures/wrapped/protocol5.pickle");
const OTHER: &[u8] = include_bytes!("../../fixtures/torch2.15.0/new_compile_aot_eager.pickle");
const RUN_ZIP: &[u8] = include_bytes!("../../fixtures/wrapped/run.zip");
const RUN_TAR: &[u8] = include_bytes!("../../fixtures/wrapped/run.tar.gz");
const ONE_ZIP: &[u8] = include_bytes!("../../fixtures/wrapped/one_streamed.zip");
const ONE_TAR: &[u8] = include_bytes!("../../fixtures/wrapped/one_gnu.tar.gz");

/// The snapshots of the two archives of a run.
const MEMBERS: [&str; 3] = [
    "gpt-small/step1/torch_memory_rank0_pid11.pickle",
    "gpt-small/step1/torch_memory_rank1_pid12.pickle.gz",
    "gpt-small/step2/torch_memory_rank0_pid11.pickle",
];

fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, path, *bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

fn zip(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut archive = rawzip::ZipArchiveWriter::new(&mut bytes);
    for (path, content) in files {
        let (mut entry, config) = archive.new_file(EntryPath::verbatim(path.as_bytes())).start().unwrap();
        let mut writer = config.wrap(&mut entry);
        writer.write_all(content).unwrap();
        let (_, descriptor) = writer.finish().unwrap();
        entry.finish(descriptor).unwrap();
    }
    archive.finish().unwrap();
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

fn list(bytes: &[u8]) -> Listing {
    archive::list(Cursor::new(bytes)).unwrap().expect("it is an archive")
}

fn refused(bytes: &[u8]) -> ReadError {
    open_file(Cursor::new(bytes)).expect_err("this must not open")
}

fn digest(bytes: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    let n = copy_content(Cursor::new(bytes), &mut content).unwrap();
    assert_eq!(n, content.len() as u64);
    content
}

#[test]
fn an_archive_of_one_snapshot_opens_like_the_snapshot() {
    let plain = open(PLAIN).unwrap();
    let wrapped = |bytes: &[u8], names: &[&str]| {
        let snapshot = open_file(Cursor::new(bytes)).unwrap();
        assert_eq!(snapshot.wrapping, names);
        assert_eq!((&snapshot.trace, &snapshot.segments), (&plain.trace, &plain.segments));
        assert_eq!(snapshot.content_bytes, plain.content_bytes);
    };
    wrapped(ONE_ZIP, &["zip", "pickle5"]);
    wrapped(ONE_TAR, &["gzip", "tar", "pickle5"]);
    let packed = zstd::bulk::compress(PLAIN, 3).unwrap();
    let files = [("README", &b"Dumps of the first step.\n"[..]), ("a/dump.pickle.zst", &packed)];
    wrapped(&tar(&files), &["tar", "zstd", "pickle5"]);
    wrapped(&zip(&files), &["zip", "zstd", "pickle5"]);
    wrapped(&zstd::bulk::compress(&tar(&files), 3).unwrap(), &["zstd", "tar", "zstd", "pickle5"]);
    assert_eq!(open(ONE_TAR).unwrap().wrapping, ["gzip", "tar", "pickle5"], "a tar can be streamed");
}

#[test]
fn an_archive_of_several_says_how_many_and_which() {
    for bytes in [RUN_ZIP, RUN_TAR] {
        let error = refused(bytes);
        assert_eq!(error.code(), ReadError::ARCHIVE);
        assert_eq!(
            error.to_string(),
            format!(
                "this archive holds 3 snapshots: {}; choose one of them, or unpack it",
                MEMBERS.join(", ")
            )
        );
        assert!(recognize(bytes).is_ok(), "whether it can be opened is told at its end");
    }
    let many: Vec<(String, &[u8])> = (0..24).map(|rank| (format!("rank{rank}.pickle"), PLAIN)).collect();
    let many: Vec<(&str, &[u8])> = many.iter().map(|(path, bytes)| (&**path, *bytes)).collect();
    let error = refused(&tar(&many)).to_string();
    assert!(error.contains("24 snapshots: rank0.pickle, rank1.pickle, rank2.pickle and 21 more;"), "{error}");
}

#[test]
fn the_snapshots_of_an_archive_are_listed_and_opened() {
    for bytes in [RUN_ZIP, RUN_TAR] {
        let listing = list(bytes);
        assert_eq!(listing.snapshots.iter().map(|member| &*member.path).collect::<Vec<_>>(), MEMBERS);
        assert_eq!(listing.snapshots[0].bytes, PLAIN.len() as u64);
        // A log, a configuration, and the empty dump of a killed process; the link to elsewhere is no file.
        assert_eq!(listing.n_others, 3);
        let second = archive::open_member(Cursor::new(bytes), MEMBERS[1]).unwrap();
        assert_eq!(second.wrapping[second.wrapping.len() - 2..], ["gzip", "pickle4"]);
        let third = archive::open_member(Cursor::new(bytes), MEMBERS[2]).unwrap();
        assert_eq!(third.trace, open(OTHER).unwrap().trace);
        let error = archive::open_member(Cursor::new(bytes), "step9.pickle").unwrap_err();
        assert_eq!(error.code(), ReadError::NOT_A_SNAPSHOT);
        assert!(
            error.to_string().starts_with("no snapshot in the archive is called step9.pickle; it holds 3"),
            "{error}"
        );
    }
    assert_eq!(archive::list(Cursor::new(PLAIN)).unwrap(), None);
    assert!(archive::open_member(Cursor::new(PLAIN), "x").unwrap_err().to_string().contains("no archive"));
}

#[test]
fn each_snapshot_is_handed_over_as_it_lies_in_the_archive_until_one_has_enough() {
    for bytes in [RUN_ZIP, RUN_TAR] {
        let mut taken = Vec::new();
        archive::each(Cursor::new(bytes), |member, bytes| {
            // The first is left half read.
            let mut content = vec![0; if taken.is_empty() { 100 } else { member.bytes as usize }];
            bytes.read_exact(&mut content).unwrap();
            taken.push(content);
            Ok(if taken.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })
        .unwrap();
        assert_eq!(taken[0], &PLAIN[..100]);
        assert_eq!(open(&taken[1][..]).unwrap().wrapping, ["gzip", "pickle4"]);
        assert_eq!(taken.len(), 2);
    }
}

#[test]
fn the_content_of_an_archive_of_one_is_the_snapshots() {
    for bytes in [PLAIN, ONE_ZIP, ONE_TAR, &gzip(PLAIN), &tar(&[("a.pickle.gz", &gzip(PLAIN))])] {
        assert_eq!(digest(bytes), PLAIN);
    }
    let error = copy_content(Cursor::new(RUN_ZIP), Vec::new()).unwrap_err();
    assert_eq!(error.code(), ReadError::ARCHIVE);
}

#[test]
fn an_archive_without_a_snapshot_says_what_is_wrong_with_what_looks_like_one() {
    let error = refused(&tar(&[("notes.txt", b"hello"), ("data/a.csv", b"a,b\n1,2\n")]));
    assert_eq!(error.code(), ReadError::NOT_A_SNAPSHOT);
    assert!(
        error.to_string().starts_with("this archive holds no memory snapshot among its 2 files"),
        "{error}"
    );
    let error = refused(&zip(&[("notes.txt", b"hello"), ("step1/dump.pickle", b"")]));
    assert_eq!(error.code(), ReadError::EMPTY);
    assert!(error.to_string().starts_with("step1/dump.pickle: the file is empty"), "{error}");
    let error = refused(&tar(&[("dump.pkl", b"\x80\x04cos\nsystem\n.")]));
    assert_eq!(error.code(), ReadError::REFUSED);
    let error = refused(&tar(&[]));
    assert!(!error.to_string().is_empty());
}

#[test]
fn a_snapshot_that_does_not_open_is_named_with_its_path_in_the_archive() {
    let error = refused(&tar(&[("step1/dump.pickle", &PLAIN[..5000])]));
    assert_eq!(error.code(), ReadError::CUT);
    assert!(error.to_string().starts_with("step1/dump.pickle: the file ends at byte 5000"), "{error}");
}

#[test]
fn archives_in_archives_and_zips_in_wrappings_are_to_be_unpacked_first() {
    let inner = tar(&[("dump.pickle", PLAIN)]);
    let error = refused(&zip(&[("dump.tar", &inner), ("run.pickle", &gzip(&inner))]));
    assert!(error.to_string().contains("an archive in an archive; unpack the outer one"), "{error}");
    let error = refused(&gzip(ONE_ZIP));
    assert_eq!(error.code(), ReadError::REFUSED);
    assert!(error.to_string().contains("unpack what is around it"), "{error}");
    assert_eq!(open(ONE_ZIP).unwrap_err().code(), ReadError::REFUSED, "a stream cannot jump to a zip's end");
}

#[test]
fn an_archive_cut_at_any_byte_says_so_or_says_what_is_cut_in_it() {
    let plain_tar = tar(&[("dump.pickle", PLAIN)]);
    for whole in [ONE_ZIP, ONE_TAR, RUN_ZIP, RUN_TAR, &plain_tar] {
        // The last block of a tar is padding of zeros, and gzip ends with a checksum of eight bytes.
        for len in (600..whole.len() - 1200).step_by(97) {
            let error = refused(&whole[..len]);
            assert_eq!(error.code(), ReadError::CUT, "cut at {len} of {}: {error}", whole.len());
        }
    }
}

#[test]
fn no_changed_byte_of_an_archive_makes_it_panic() {
    for whole in [ONE_ZIP, RUN_ZIP, &tar(&[("dump.pickle", PLAIN), ("b.pickle", OTHER)])] {
        for at in (0..whole.len()).step_by(5) {
            let mut bytes = whole.to_vec();
            bytes[at] ^= 0x41;
            drop(archive::list(Cursor::new(&bytes)));
            drop(open_file(Cursor::new(&bytes)));
        }
    }
}

#[test]
fn a_damaged_byte_in_a_zip_is_found_by_its_checksum() {
    let mut bytes = zip(&[("dump.pickle", PLAIN)]);
    // A digit of a line number or the like: the pickle itself stays whole.
    let at = bytes.windows(9).position(|part| part == b"<module>\x94").unwrap_or(4000);
    bytes[at + 1] ^= 1;
    let error = refused(&bytes);
    assert_eq!(error.code(), ReadError::DAMAGED, "{error}");
}

#[test]
fn a_path_that_speaks_to_terminals_or_climbs_is_only_a_name() {
    let files = [("../../etc/\x1b[2Jdump.pickle", PLAIN), ("/abs/b.pickle", PLAIN)];
    let listing = list(&zip(&files));
    assert_eq!(listing.snapshots[0].path, "../../etc/\u{fffd}[2Jdump.pickle");
}

#[test]
fn a_bomb_in_an_archive_is_refused() {
    // None and POP, without end.
    let mut packed = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    packed.write_all(b"\x80\x04").unwrap();
    let block = b"N0".repeat(1 << 19);
    for _ in 0..300 {
        packed.write_all(&block).unwrap();
    }
    let bomb = packed.finish().unwrap();
    assert!(bomb.len() * 2000 < 256 << 20);
    for archive in [tar(&[("a.pickle.zst", &bomb)]), zip(&[("a.pickle.zst", &bomb)])] {
        let error = refused(&archive);
        assert_eq!(error.code(), ReadError::TOO_LARGE, "{error}");
    }
}

#[test]
fn a_sparse_file_that_claims_terabytes_costs_little() {
    // GNU's sparse format: no data at all, and a real size of 8 TiB.
    let mut header = tar::Header::new_gnu();
    header.set_path("dump.pickle").unwrap();
    header.set_entry_type(tar::EntryType::GNUSparse);
    header.set_size(0);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.set_real_size(8 << 40);
    gnu.sparse[0].set_offset(8 << 40);
    gnu.sparse[0].set_length(0);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend([0; 1024]);
    let error = refused(&bytes);
    assert!(
        [ReadError::NOT_A_SNAPSHOT, ReadError::DAMAGED].contains(&error.code()),
        "{}: {error}",
        error.code()
    );
}
