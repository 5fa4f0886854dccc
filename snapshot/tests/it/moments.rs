//! Memory at one moment: what a snapshot taken then would have shown.

use tidegauge_snapshot::model::BlockState;
use tidegauge_snapshot::picture::Index;
use tidegauge_snapshot::replay::{fragmentation, replay};

use crate::pack::fixtures;

#[test]
fn the_state_after_the_last_event_is_what_the_segments_show() {
    let mut n_blocks = 0;
    for (name, snapshot) in fixtures() {
        for device in &snapshot.devices {
            let replay = replay(&snapshot, device);
            let state = replay.state_at(device.events.len() as u32);
            assert!(state.strays.is_empty(), "{name}");
            let segments = &snapshot.segments;
            let mut expected: Vec<usize> = device.segments.clone().collect();
            expected.sort_by_key(|segment| segments.address[*segment]);
            let bounds = |segment: &usize| (segments.address[*segment], segments.total_size[*segment]);
            let found: Vec<_> =
                state.segments.iter().map(|segment| (segment.address, segment.size)).collect();
            assert_eq!(found, expected.iter().map(bounds).collect::<Vec<_>>(), "{name}");
            for (segment, found) in expected.iter().zip(&state.segments) {
                let blocks = segments.blocks[*segment].clone().map(|block| block as usize);
                let blocks = blocks.map(|block| {
                    let blocks = &snapshot.blocks;
                    (blocks.address[block], blocks.size[block], blocks.state[block])
                });
                let found = &state.blocks[found.blocks.clone()];
                let found: Vec<_> =
                    found.iter().map(|block| (block.address, block.size, block.state)).collect();
                assert_eq!(found, blocks.collect::<Vec<_>>(), "{name}");
                n_blocks += found.len();
            }
        }
    }
    assert!(n_blocks > 1000);
}

#[test]
fn at_every_moment_blocks_fill_their_segments_and_add_up_to_the_levels() {
    for (name, snapshot) in fixtures() {
        // A converted profile has no segments for the CPU, and guesses those of the GPU.
        for device in snapshot.devices.iter().filter(|_| snapshot.producer != "torch.profiler") {
            let replay = replay(&snapshot, device);
            let index = Index::new(&replay);
            let fragmentation = fragmentation(&snapshot, device);
            assert_eq!(fragmentation.largest_free.len(), replay.curves.n_states(), "{name}");
            for state in (0..replay.curves.n_states()).step_by(1 + replay.curves.n_states() / 50) {
                let moment = replay.state_at(state as u32);
                let alive = index.alive_at(&replay, state as u32);
                assert_eq!(alive, replay.alive_at(state as u32), "{name}, state {state}");
                let levels = replay.curves.at(state);
                let sum = |is_counted: fn(BlockState) -> bool| -> u64 {
                    moment.blocks.iter().filter(|block| is_counted(block.state)).map(|block| block.size).sum()
                };
                assert_eq!(sum(|_| true), levels.reserved, "{name}, state {state}");
                assert_eq!(
                    sum(|doing| doing != BlockState::Inactive),
                    levels.active,
                    "{name}, state {state}"
                );
                assert_eq!(sum(|doing| doing == BlockState::Allocated), levels.allocated, "{name}");
                let free = moment.blocks.iter().filter(|block| block.state == BlockState::Inactive);
                let largest = free.map(|block| block.size).max().unwrap_or(0);
                assert_eq!(fragmentation.largest_free[state], largest, "{name}, state {state}");
                let free = moment.free(&replay.reservations);
                assert_eq!(free.bytes, levels.reserved - levels.active, "{name}, state {state}");
                assert_eq!(free.largest.map_or(0, |(_, bytes)| bytes), largest, "{name}, state {state}");
                assert_eq!(free.inactive_split, fragmentation.inactive_split[state], "{name}, state {state}");
            }
        }
    }
}
