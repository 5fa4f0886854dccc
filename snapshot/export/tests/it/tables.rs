//! Tables: they hold what the replay found, in every format the same.

use std::{collections::BTreeMap, io::Cursor};

use arrow_array::{
    Array as _, RecordBatch,
    cast::AsArray as _,
    types::{Int32Type, Int64Type, UInt64Type},
};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tidegauge_export::{Part, Table, arrow, csv, parquet as parquet_file};
use tidegauge_snapshot::model::{Action, BlockState, Device};
use tidegauge_snapshot::replay::NEVER;

use crate::{FIXTURES, Opened};

fn from_arrow(part: &Part<'_>, table: Table) -> Vec<RecordBatch> {
    let mut out = Vec::new();
    arrow::write(part, table, &mut out).unwrap();
    let reader = arrow_ipc::reader::FileReader::try_new(Cursor::new(out), None).unwrap();
    reader.map(Result::unwrap).collect()
}

fn from_parquet(part: &Part<'_>, table: Table) -> Vec<RecordBatch> {
    let file = tempfile::tempfile().unwrap();
    parquet_file::write(part, table, file.try_clone().unwrap()).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().with_batch_size(1 << 16);
    reader.build().unwrap().map(Result::unwrap).collect()
}

fn from_csv(part: &Part<'_>, table: Table) -> String {
    let mut out = Vec::new();
    csv::write(part, table, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// A column of whole numbers, null where there is none.
fn ints(batches: &[RecordBatch], name: &str) -> Vec<Option<i64>> {
    let column =
        |batch: &RecordBatch| batch.column_by_name(name).unwrap().as_primitive::<Int64Type>().clone();
    batches.iter().flat_map(|batch| column(batch).iter().collect::<Vec<_>>()).collect()
}

fn wides(batches: &[RecordBatch], name: &str) -> Vec<u64> {
    let column =
        |batch: &RecordBatch| batch.column_by_name(name).unwrap().as_primitive::<UInt64Type>().clone();
    batches.iter().flat_map(|batch| column(batch).values().to_vec()).collect()
}

fn texts(batches: &[RecordBatch], name: &str) -> Vec<Option<String>> {
    let column = |batch: &RecordBatch| {
        let dictionary = batch.column_by_name(name).unwrap().as_dictionary::<Int32Type>().clone();
        let words = dictionary.values().as_string::<i32>().clone();
        let key = |row| dictionary.key(row).map(|key| words.value(key).to_owned());
        (0..dictionary.len()).map(key).collect::<Vec<_>>()
    };
    batches.iter().flat_map(column).collect()
}

fn n_rows(batches: &[RecordBatch]) -> usize {
    batches.iter().map(RecordBatch::num_rows).sum()
}

fn sum(numbers: &[Option<i64>]) -> i64 {
    numbers.iter().flatten().sum()
}

#[test]
fn every_table_is_the_same_in_parquet_arrow_and_csv() {
    for name in FIXTURES {
        let opened = Opened::fixture(name);
        let part = opened.whole();
        for table in Table::ALL {
            let (arrow, parquet) = (from_arrow(&part, table), from_parquet(&part, table));
            assert_eq!(n_rows(&arrow), n_rows(&parquet), "{name} {table:?}");
            for column in arrow.first().map(|batch| batch.schema()).iter().flat_map(|schema| schema.fields())
            {
                let of = |batches: &[RecordBatch]| match column.data_type() {
                    arrow_schema::DataType::Dictionary(..) => texts(batches, column.name())
                        .into_iter()
                        .map(|text| format!("{text:?}"))
                        .collect::<Vec<_>>(),
                    _ => batches
                        .iter()
                        .flat_map(|batch| {
                            let column = batch.column_by_name(column.name()).unwrap();
                            (0..column.len())
                                .map(|row| format!("{:?}", column.slice(row, 1)))
                                .collect::<Vec<_>>()
                        })
                        .collect(),
                };
                if n_rows(&arrow) < 5_000 {
                    assert_eq!(of(&arrow), of(&parquet), "{name} {table:?} {}", column.name());
                }
            }
            let text = from_csv(&part, table);
            // Names in fixtures hold no line ends.
            assert_eq!(text.matches("\r\n").count(), n_rows(&arrow) + 1, "{name} {table:?}");
        }
    }
}

#[test]
fn levels_are_those_of_the_replay_state_by_state() {
    for name in FIXTURES {
        let opened = Opened::fixture(name);
        let levels = from_parquet(&opened.whole(), Table::Levels);
        let column = |of: fn(&tidegauge_snapshot::replay::Curves) -> &Vec<u64>| -> Vec<Option<i64>> {
            opened
                .replays
                .iter()
                .flat_map(|replay| of(&replay.curves))
                .map(|level| Some(*level as i64))
                .collect()
        };
        assert_eq!(ints(&levels, "requested_bytes"), column(|curves| &curves.requested), "{name}");
        assert_eq!(ints(&levels, "allocated_bytes"), column(|curves| &curves.allocated), "{name}");
        assert_eq!(ints(&levels, "active_bytes"), column(|curves| &curves.active), "{name}");
        assert_eq!(ints(&levels, "reserved_bytes"), column(|curves| &curves.reserved), "{name}");
        let (states, events) = (ints(&levels, "state"), ints(&levels, "event"));
        assert!(states.iter().zip(&events).all(|(state, event)| match state {
            Some(0) => event.is_none(),
            state => event.map(|event| event + 1) == *state,
        }));
    }
}

#[test]
fn allocations_add_up_to_the_level_at_any_event() {
    for name in FIXTURES {
        let opened = Opened::fixture(name);
        let rows = from_parquet(&opened.whole(), Table::Allocations);
        let n_allocations: usize = opened.replays.iter().map(|replay| replay.allocations.len()).sum();
        assert_eq!(n_rows(&rows), n_allocations, "{name}");
        let columns = ["device", "size_bytes", "from_event", "to_event", "free_requested_event"];
        let [device, size, from, to, free] = columns.map(|column| ints(&rows, column));
        for (which, replay) in opened.snapshot.devices.iter().zip(&opened.replays) {
            let n_events = which.events.len();
            for event in [0, n_events / 3, n_events / 2, n_events.saturating_sub(1)] {
                let event = event as i64;
                let alive = |end: &[Option<i64>]| -> i64 {
                    (0..size.len())
                        .filter(|row| device[*row] == Some(which.ordinal.into()))
                        .filter(|row| from[*row].is_none_or(|from| from <= event))
                        .filter(|row| end[*row].is_none_or(|end| event < end))
                        .map(|row| size[row].unwrap())
                        .sum()
                };
                if n_events > 0 {
                    let levels = replay.curves.at(event as usize + 1);
                    assert_eq!(alive(&to), levels.active as i64, "{name} event {event}");
                    assert_eq!(alive(&free), levels.allocated as i64, "{name} event {event}");
                }
            }
        }
    }
}

#[test]
fn events_stand_in_their_order_with_addresses_to_the_last_bit() {
    for name in FIXTURES {
        let opened = Opened::fixture(name);
        let trace = &opened.snapshot.trace;
        let rows = from_parquet(&opened.whole(), Table::Events);
        // Behind the devices' events stand those of pinned host memory.
        let events = || opened.snapshot.devices.iter().flat_map(|device| device.events.clone());
        let expected: Vec<u64> = events()
            .map(|event| if trace.action[event] == Action::OOM { 0 } else { trace.address[event] })
            .collect();
        assert_eq!(wides(&rows, "address"), expected, "{name}");
        let action = |event: usize| opened.snapshot.action_name(trace.action[event]).to_owned();
        let actions: Vec<Option<String>> = events().map(|event| Some(action(event))).collect();
        assert_eq!(texts(&rows, "action"), actions, "{name}");
        let numbers: Vec<Option<i64>> = opened
            .snapshot
            .devices
            .iter()
            .flat_map(|device| 0..device.events.len() as i64)
            .map(Some)
            .collect();
        assert_eq!(ints(&rows, "event"), numbers, "{name}");
    }
}

#[test]
fn a_device_that_was_full_says_what_it_had_left() {
    let opened = Opened::fixture("oom_plain_2gib.pickle");
    let rows = from_parquet(&opened.whole(), Table::Events);
    let free = ints(&rows, "device_free_bytes");
    let oom: Vec<usize> = texts(&rows, "action")
        .iter()
        .enumerate()
        .filter(|(_, action)| action.as_deref() == Some("oom"))
        .map(|(row, _)| row)
        .collect();
    assert!(!oom.is_empty());
    assert!(free.iter().enumerate().all(|(row, free)| free.is_some() == oom.contains(&row)));
}

#[test]
fn segments_and_blocks_add_up_to_the_end() {
    for name in FIXTURES {
        let opened = Opened::fixture(name);
        let total = |of: fn(&tidegauge_snapshot::replay::Levels) -> u64| -> i64 {
            opened.replays.iter().map(|replay| of(&replay.end) as i64).sum()
        };
        let segments = from_parquet(&opened.whole(), Table::Segments);
        assert_eq!(sum(&ints(&segments, "size_bytes")), total(|end| end.reserved), "{name}");
        assert_eq!(sum(&ints(&segments, "active_bytes")), total(|end| end.active), "{name}");
        assert_eq!(sum(&ints(&segments, "allocated_bytes")), total(|end| end.allocated), "{name}");
        assert_eq!(sum(&ints(&segments, "requested_bytes")), total(|end| end.requested), "{name}");

        let blocks = from_parquet(&opened.whole(), Table::Blocks);
        assert_eq!(n_rows(&blocks) as i64, sum(&ints(&segments, "n_blocks")), "{name}");
        assert_eq!(sum(&ints(&blocks, "size_bytes")), total(|end| end.reserved), "{name}");
        assert_eq!(sum(&ints(&blocks, "requested_bytes")), total(|end| end.requested), "{name}");
        let snapshot = &opened.snapshot;
        let segments = snapshot.devices.iter().flat_map(|device| device.segments.clone());
        let n_inactive = segments
            .flat_map(|segment| snapshot.segments.blocks[segment].clone())
            .filter(|block| snapshot.blocks.state[*block as usize] == BlockState::Inactive)
            .count();
        let inactive =
            texts(&blocks, "state").iter().filter(|state| state.as_deref() == Some("inactive")).count();
        assert_eq!(inactive, n_inactive, "{name}");
    }
}

#[test]
fn a_stack_is_the_same_in_stacks_frames_and_allocations() {
    let opened = Opened::fixture("fsdp1_w2_clear_rank0_step5.pickle");
    let part = opened.whole();
    let stacks = from_parquet(&part, Table::Stacks);
    let by_id: BTreeMap<Option<i64>, Option<String>> =
        ints(&stacks, "stack_id").into_iter().zip(texts(&stacks, "stack")).collect();
    assert_eq!(by_id.len(), opened.snapshot.stacks.len());

    let frames = from_parquet(&part, Table::Frames);
    assert_eq!(n_rows(&frames) as i64, sum(&ints(&stacks, "n_frames")));
    let mut joined: BTreeMap<Option<i64>, Vec<String>> = BTreeMap::new();
    let cells = ints(&frames, "stack_id").into_iter().zip(texts(&frames, "file")).zip(ints(&frames, "line"));
    for (((stack, file), line), function) in cells.zip(texts(&frames, "function")) {
        let line = line.map(|line| format!(":{line}")).unwrap_or_default();
        joined.entry(stack).or_default().push(format!("{}{line} {}", file.unwrap(), function.unwrap()));
    }
    for (stack, frames) in joined {
        assert_eq!(by_id[&stack].as_deref(), Some(frames.join(";").as_str()));
    }

    let allocations = from_parquet(&part, Table::Allocations);
    for (stack, text) in ints(&allocations, "stack_id").into_iter().zip(texts(&allocations, "stack")) {
        assert_eq!(by_id.get(&stack).cloned().flatten(), text);
    }
}

#[test]
fn a_window_holds_its_events_and_what_was_alive_in_it() {
    let opened = Opened::fixture("fsdp1_w2_clear_rank0_step5.pickle");
    let part = opened.window(100..200);
    assert_eq!(ints(&from_arrow(&part, Table::Events), "event"), (100..200).map(Some).collect::<Vec<_>>());
    assert_eq!(ints(&from_arrow(&part, Table::Levels), "state"), (100..=200).map(Some).collect::<Vec<_>>());
    let replay = &opened.replays[0];
    let alive: Vec<Option<i64>> = (0..replay.allocations.len())
        .filter(|row| replay.allocations.from[*row] <= 200)
        .filter(|row| replay.allocations.to[*row] == NEVER || replay.allocations.to[*row] > 100)
        .map(|row| Some(row as i64))
        .collect();
    assert_eq!(ints(&from_arrow(&part, Table::Allocations), "allocation"), alive);

    let device = &opened.snapshot.devices[0];
    let error = Part::window(&opened.snapshot, device, replay, 5..1_000_000).unwrap_err();
    assert!(error.to_string().contains("5..1000000 is not within"), "{error}");
}

#[test]
fn segments_and_blocks_of_a_window_are_those_of_its_end() {
    for name in ["fsdp2_w4_expandable_clear_rank0_step4.pickle", "pools_graphs_after_delete.pickle"] {
        let opened = Opened::fixture(name);
        let n_events = opened.snapshot.devices[0].events.len() as u32;
        for until in (0..n_events).step_by(n_events as usize / 10) {
            let part = opened.window(0..until);
            let levels = opened.replays[0].curves.at(until as usize);
            let segments = from_arrow(&part, Table::Segments);
            assert_eq!(sum(&ints(&segments, "size_bytes")), levels.reserved as i64, "{name} {until}");
            assert_eq!(sum(&ints(&segments, "active_bytes")), levels.active as i64, "{name} {until}");
            assert_eq!(sum(&ints(&segments, "allocated_bytes")), levels.allocated as i64, "{name} {until}");
            let blocks = from_arrow(&part, Table::Blocks);
            assert_eq!(sum(&ints(&blocks, "size_bytes")), levels.reserved as i64, "{name} {until}");
            assert_eq!(sum(&ints(&blocks, "requested_bytes")), levels.requested as i64, "{name} {until}");
        }
    }
}

#[test]
fn pinned_host_memory_is_device_minus_one() {
    let opened = Opened::fixture("oom_plain_2gib.pickle");
    let host = Device { ordinal: Device::HOST, ..opened.snapshot.devices[0].clone() };
    let events = 0..host.events.len() as u32;
    let part = Part::window(&opened.snapshot, &host, &opened.replays[0], events).unwrap();
    let segments = from_arrow(&part, Table::Segments);
    assert!(n_rows(&segments) > 0);
    assert!(ints(&segments, "device").iter().all(|device| *device == Some(-1)));
}

#[test]
fn a_snapshot_of_nothing_is_a_table_without_rows() {
    let opened = Opened::of(tidegauge_snapshot::Snapshot::default());
    for table in Table::ALL {
        let rows = from_parquet(&opened.whole(), table);
        let expected = usize::from(table == Table::Stacks);
        assert_eq!(n_rows(&rows), expected, "{table:?}: only the empty stack is always there");
        assert_eq!(from_csv(&opened.whole(), table).matches("\r\n").count(), 1 + expected);
    }
}

#[test]
fn the_documentation_names_every_column_of_every_table_with_its_type() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/export.md");
    let documentation = std::fs::read_to_string(path).unwrap();
    let opened = Opened::fixture("oom_plain_2gib.pickle");
    for table in Table::ALL {
        let heading = format!("### {}\n", table.name());
        let section = documentation.split_once(&heading).expect(&heading).1;
        let section = section.split_once("\n### ").map_or(section, |(section, _)| section);
        let mut out = Vec::new();
        arrow::write(&opened.whole(), table, &mut out).unwrap();
        let reader = arrow_ipc::reader::FileReader::try_new(Cursor::new(out), None).unwrap();
        let documented: Vec<&str> = section.lines().filter(|line| line.starts_with("| `")).collect();
        assert_eq!(documented.len(), reader.schema().fields().len(), "{table:?}");
        for (line, field) in documented.into_iter().zip(reader.schema().fields()) {
            use arrow_schema::DataType;
            let kind = match field.data_type() {
                DataType::Int64 => "int64",
                DataType::UInt64 => "uint64",
                DataType::Boolean => "bool",
                DataType::Timestamp(..) => "time",
                _ => "text",
            };
            let may_be_null = if field.is_nullable() { ", may be null" } else { "" };
            let expected = format!("| `{}` | {kind}{may_be_null} |", field.name());
            assert!(line.starts_with(&expected), "{table:?}: {line} should begin with {expected}");
        }
    }
}
