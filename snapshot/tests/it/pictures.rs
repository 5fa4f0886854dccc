//! Pictures obey their laws on real traces.

use tidegauge_snapshot::picture::{Bands, ID_NONE, ID_OTHER, Index, Palette, Raster, View};
use tidegauge_snapshot::replay::{Replay, replay};

use crate::pack::fixtures;

fn views(n_states: u32) -> Vec<View> {
    let view = |from, to, width, height| View { from, to, width, height, top: None };
    vec![
        view(0, n_states, 640, 240),
        view(n_states / 3, n_states / 2, 333, 100),
        view(n_states / 2, n_states / 2 + 20, 500, 300),
        view(0, n_states, 1, 1),
        view(n_states.saturating_sub(1), n_states + 50, 70, 50),
    ]
}

/// The same columns, computed the slow and simple way.
fn check_against_all_allocations(name: &str, replay: &Replay, bands: &Bands) {
    let allocations = &replay.allocations;
    for (column, state) in bands.states.iter().enumerate() {
        let expected: Vec<u32> = (0..allocations.len() as u32)
            .filter(|row| {
                let row = *row as usize;
                allocations.from[row] <= *state
                    && allocations.to[row] > *state
                    && allocations.size[row] >= bands.smallest
            })
            .collect();
        let drawn: Vec<u32> = bands.column(column).iter().map(|band| band.allocation).collect();
        assert_eq!(drawn, expected, "{name}, state {state}");
    }
}

#[test]
fn bands_and_other_add_up_to_the_active_bytes_and_no_peak_vanishes() {
    let mut n_views = 0;
    for (name, snapshot) in fixtures() {
        for device in &snapshot.devices {
            let replay = replay(&snapshot, device);
            let index = Index::new(&replay);
            let active = &replay.curves.active;
            for view in views(active.len() as u32) {
                let bands = index.bands(&replay, view);
                n_views += 1;
                let window = &active[bands.view.from as usize..bands.view.to as usize];
                let seen = bands.states.iter().map(|state| active[*state as usize]).max();
                assert_eq!(seen, window.iter().copied().max(), "{name}: the peak of the window is not shown");
                for (column, state) in bands.states.iter().enumerate() {
                    let sizes = bands.column(column).iter().map(|band| band.size);
                    let drawn: u64 = sizes.sum();
                    assert_eq!(
                        drawn + bands.other[column],
                        active[*state as usize],
                        "{name}, column {column}"
                    );
                }
            }
        }
    }
    assert!(n_views > 100);
}

#[test]
fn a_column_shows_every_allocation_that_is_large_enough() {
    for (name, snapshot) in fixtures() {
        let is_small = snapshot.trace.len() < 5000;
        for device in snapshot.devices.iter().filter(|_| is_small) {
            let replay = replay(&snapshot, device);
            let index = Index::new(&replay);
            for view in views(replay.curves.n_states() as u32) {
                check_against_all_allocations(&name, &replay, &index.bands(&replay, view));
            }
        }
    }
}

#[test]
fn each_pixel_names_the_allocation_it_shows() {
    let (_, snapshot) = fixtures().into_iter().find(|(name, _)| name.starts_with("streams_2dev")).unwrap();
    let palette = Palette::new(&snapshot);
    for device in &snapshot.devices {
        let replay = replay(&snapshot, device);
        let view = View { from: 0, to: u32::MAX, width: 200, height: 150, top: None };
        let (raster, bands) = Raster::draw(&Index::new(&replay), &replay, &palette, view);
        for column in 0..200 {
            for row in 0..150u64 {
                // The pixel's lower edge, counted from the bottom, decides.
                let level = row * bands.top / 150;
                let pixel = ((149 - row) * 200 + column) as usize;
                let (id, alpha) = (raster.ids[pixel], raster.rgba[4 * pixel + 3]);
                let state = bands.states[column as usize] as usize;
                match id {
                    ID_NONE => assert!(alpha == 0 && level + bands.top / 150 >= replay.curves.active[state]),
                    ID_OTHER => assert_eq!(alpha, 255),
                    id => {
                        let is_in_column =
                            bands.column(column as usize).iter().any(|band| band.allocation == id);
                        assert!(is_in_column && alpha == 255);
                    }
                }
            }
        }
    }
}

#[test]
fn memory_in_many_equal_small_pieces_is_drawn_and_not_summed_up() {
    // A fifth of this run's memory lies in pieces far below a pixel at this height.
    let (_, snapshot) = fixtures().into_iter().find(|(name, _)| name.contains("rank5_step3")).unwrap();
    let device = snapshot.devices.iter().max_by_key(|device| device.events.len()).unwrap();
    let replay = replay(&snapshot, device);
    let bands = Index::new(&replay)
        .bands(&replay, View { from: 0, to: u32::MAX, width: 800, height: 100, top: None });
    let most = bands.other.iter().max().unwrap();
    assert!(most * 20 < replay.peak.active, "{most} of {} in the other band", replay.peak.active);
}
