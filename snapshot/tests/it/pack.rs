//! Pack and unpack give the same snapshot; a damaged pack says so.

use std::path::Path;

use tidegauge_snapshot::pack;
use tidegauge_snapshot::picture::{Index, Palette, Raster, View};
use tidegauge_snapshot::read::open;
use tidegauge_snapshot::replay::replay;

/// Every committed snapshot.
pub(crate) fn fixtures() -> Vec<(String, tidegauge_snapshot::Snapshot)> {
    fn collect(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, found);
            } else if path.to_str().unwrap().ends_with(".pickle") || path.to_str().unwrap().ends_with(".zst")
            {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    collect(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures")), &mut found);
    found.sort();
    found
        .into_iter()
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, open(std::fs::File::open(path).unwrap()).unwrap())
        })
        .collect()
}

#[test]
fn every_fixture_survives_packing() {
    for (name, snapshot) in fixtures() {
        let unpacked = pack::read(&pack::write(&snapshot)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(unpacked == snapshot, "{name} changed");
    }
}

#[test]
fn the_first_part_of_a_pack_draws_the_same_picture_as_all_of_it() {
    let view = View { from: 0, to: u32::MAX, width: 300, height: 200, top: None };
    for (name, snapshot) in
        fixtures().into_iter().filter(|(name, _)| name.contains("step3") || name.contains("oom"))
    {
        let packed = pack::write(&snapshot);
        let header = pack::header(&packed).unwrap().unwrap();
        assert_eq!(header.total_bytes, packed.len() as u64);
        let first = &packed[..header.first_bytes as usize];
        let (mut partial, palette) = pack::read_first(&header, first).unwrap();
        for device in &snapshot.devices {
            let whole = replay(&snapshot, device);
            let (expected, _) = Raster::draw(&Index::new(&whole), &whole, &Palette::new(&snapshot), view);
            let part = replay(&partial, device);
            let (drawn, _) = Raster::draw(&Index::new(&part), &part, &palette, view);
            assert!(drawn == expected, "{name} device {}", device.ordinal);
        }
        pack::add_stacks(&mut partial, &header, &packed[header.first_bytes as usize..]).unwrap();
        assert!(partial == snapshot, "{name}");
    }
}

#[test]
fn a_damaged_or_cut_pack_is_an_error_and_never_a_panic() {
    let snapshot = open(&include_bytes!("../../fixtures/pools_graphs_mempool.pickle")[..]).unwrap();
    let packed = pack::write(&snapshot);
    for len in 0..packed.len() {
        assert!(pack::read(&packed[..len]).is_err(), "cut at {len}");
    }
    for at in 0..packed.len() {
        let mut damaged = packed.clone();
        damaged[at] ^= 0x5a;
        assert!(pack::read(&damaged).is_err(), "changed at {at}");
    }
}

#[test]
fn a_pack_of_another_version_says_so() {
    let mut packed = pack::write(&tidegauge_snapshot::Snapshot::default());
    packed[8] += 1;
    let error = pack::header(&packed).unwrap_err();
    assert!(error.to_string().contains("has version 3"), "{error}");
}
