//! The map of a moment obeys its laws on real traces.

use tidegauge_snapshot::picture::{Index, Map, MapKind, MapOrder, MapScale, MapView};
use tidegauge_snapshot::replay::{Replay, StateAt, replay};

use crate::pack::fixtures;

const VIEWS: [MapView; 4] = [
    MapView { width: 1_000, scale: MapScale::Common, order: MapOrder::Largest },
    MapView { width: 333, scale: MapScale::Own, order: MapOrder::Address },
    MapView { width: 1, scale: MapScale::Common, order: MapOrder::Address },
    MapView { width: 16_000, scale: MapScale::Own, order: MapOrder::Largest },
];

/// Calls `check` with moments of every fixture.
fn moments(mut check: impl FnMut(&str, &Replay, &StateAt)) {
    for (name, snapshot) in fixtures() {
        for device in &snapshot.devices {
            let replay = replay(&snapshot, device);
            let index = Index::new(&replay);
            let n_states = replay.curves.n_states();
            for state in (0..n_states).step_by(1 + n_states / 8) {
                let alive = index.alive_at(&replay, state as u32);
                check(&name, &replay, &replay.state_of(state as u32, alive));
            }
        }
    }
}

#[test]
fn the_rectangles_of_a_row_fill_it_without_overlap_and_add_up_to_its_segment() {
    let mut n_rects = 0;
    moments(|name, replay, moment| {
        for view in VIEWS {
            let map = Map::new(replay, moment, view);
            for (row, segment) in map.segments.iter().enumerate() {
                let segment = &moment.segments[*segment];
                let rects: Vec<_> = map.rects.iter().filter(|rect| rect.row as usize == row).collect();
                let mut at = (0, 0);
                for rect in &rects {
                    assert_eq!((rect.x, rect.offset), at, "{name}, row {row}, {view:?}");
                    assert!(rect.waste <= rect.width && rect.active <= rect.bytes, "{name}: {rect:?}");
                    at = (rect.x + rect.width, rect.offset + rect.bytes);
                }
                assert_eq!(at.1, segment.size, "{name}, row {row}");
                assert!(at.0 <= view.width, "{name}, row {row}");
                let n_blocks: u32 = rects.iter().map(|rect| rect.n_blocks).sum();
                assert_eq!(n_blocks as usize, segment.blocks.len(), "{name}, row {row}");
                n_rects += rects.len();
            }
        }
    });
    assert!(n_rects > 10_000, "{n_rects}");
}

#[test]
fn every_block_of_a_pixel_has_a_rectangle_of_its_own() {
    let mut n_blocks = 0;
    moments(|name, replay, moment| {
        for view in VIEWS {
            let map = Map::new(replay, moment, view);
            let largest = moment.segments.iter().map(|segment| segment.size).max().unwrap_or(1);
            for (row, segment) in map.segments.iter().enumerate() {
                let segment = &moment.segments[*segment];
                let whole = if view.scale == MapScale::Own { segment.size } else { largest };
                for block in moment.blocks_of(segment) {
                    let pixels = u128::from(block.size) * u128::from(view.width);
                    if pixels < u128::from(whole) * u128::from(map.grain + 1) {
                        continue;
                    }
                    let Some(allocation) = block.allocation else { continue };
                    let rect = map.rects.iter().find(|rect| rect.allocation == allocation).unwrap();
                    assert_eq!(rect.row as usize, row, "{name}");
                    assert_ne!(rect.kind, MapKind::Several, "{name}");
                    let spot = map.spot(moment, allocation).unwrap();
                    assert_eq!((spot.row, spot.x, spot.width), (rect.row, rect.x, rect.width), "{name}");
                    n_blocks += 1;
                }
            }
        }
    });
    assert!(n_blocks > 1_000, "{n_blocks}");
}

#[test]
fn an_allocation_too_small_to_draw_still_has_a_spot() {
    moments(|name, replay, moment| {
        let map = Map::new(replay, moment, VIEWS[2]);
        let in_rows = map.segments.iter().flat_map(|segment| moment.blocks_of(&moment.segments[*segment]));
        for allocation in in_rows.filter_map(|block| block.allocation).take(20) {
            let spot = map.spot(moment, allocation).unwrap();
            assert_eq!((spot.x, spot.width), (0, 1), "{name}");
        }
    });
}
