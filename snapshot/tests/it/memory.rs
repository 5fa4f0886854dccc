//! Reading takes at most four times the decompressed input and 64 MB, whoever made the input.
//!
//! Each input is read by a process of its own, whose highest memory the kernel tells (Linux only).

#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegauge_snapshot::read::open;

/// Bytes of each input: enough that what is taken for each of them shows beside the 64 MB.
const INPUT_BYTES: usize = 32 << 20;

/// What reading may take beside four times the input.
const BASE_BYTES: u64 = 64_000_000;

/// Names the input that the child process reads.
const INPUT: &str = "TIDEGAUGE_TEST_MEMORY_INPUT";

/// An input by its name, as repeated parts between a beginning and an end.
struct Bomb {
    name: &'static str,
    beginning: Vec<u8>,
    part: fn(u32) -> Vec<u8>,
    end: &'static [u8],
}

/// The end of every pickle here: what was made is thrown away, and an empty snapshot is left.
const END: &[u8] = b"0}X\x08\0\0\0segments]s.";

fn bomb(name: &'static str, beginning: impl Into<Vec<u8>>, part: fn(u32) -> Vec<u8>) -> Bomb {
    Bomb { name, beginning: beginning.into(), part, end: END }
}

/// `](` … `e`: a batch of a thousand values for the list on the stack.
fn batch(value: &[u8]) -> Vec<u8> {
    [b"(", &value.repeat(1000)[..], b"e"].concat()
}

/// `X` and a text of four bytes that no other number has.
fn key(n: u32) -> Vec<u8> {
    let digits = [n, n >> 6, n >> 12, n >> 18].map(|part| b'0' + (part & 63) as u8);
    [b"\x8c\x04", &digits[..]].concat()
}

/// Opcodes that store these texts as memo 0, 1, … and leave nothing on the stack.
fn memo(texts: &[&str]) -> Vec<u8> {
    let mut bytes = b"\x80\x04".to_vec();
    for text in texts {
        bytes.extend([0x8c, text.len() as u8]);
        bytes.extend(text.as_bytes());
        bytes.extend([0x94, b'0']);
    }
    bytes
}

fn bombs() -> Vec<Bomb> {
    let list = || b"\x80\x04]".to_vec();
    let with_keys = |keys: &[&str]| [memo(keys), b"]".to_vec()].concat();
    vec![
        bomb("a value stored again and again", b"\x80\x04N", |_| vec![0x94; 1000]),
        bomb("a value stored under each number", b"\x80\x02N", |n| [b"r", &n.to_le_bytes()[..]].concat()),
        bomb("empty lists", list(), |_| batch(b"]")),
        bomb("empty dicts", list(), |_| batch(b"}")),
        bomb("empty tuples", list(), |_| batch(b")")),
        bomb("empty lists that are stored", list(), |_| batch(b"]\x94")),
        bomb("lists of one", list(), |_| batch(b"]Na")),
        bomb("lists of one list", list(), |_| batch(b"]]a")),
        bomb("tuples of one", list(), |_| batch(b"N\x85")),
        bomb("a tuple in a tuple in a tuple", b"\x80\x04N", |_| vec![0x85; 1000]),
        bomb("dicts of one", list(), |_| batch(b"}NNs")),
        bomb("a value recalled again and again", b"\x80\x04K\x01\x94]", |_| batch(b"h\x00")),
        bomb("a list recalled again and again", b"\x80\x04]\x94]", |_| batch(b"h\x00")),
        bomb("short texts", list(), |n| [&key(n)[..], b"0"].concat()),
        bomb("short texts that are stored", list(), |n| [&key(n)[..], b"\x940"].concat()),
        bomb("floats", list(), |_| batch(b"G\x3f\xf8\0\0\0\0\0\0")),
        bomb("large numbers", list(), |_| batch(b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f")),
        bomb("pairs", list(), |n| {
            let [a, b, c, _] = n.to_le_bytes();
            vec![b'K', a, b'M', b, c, 0x86, b'0']
        }),
        bomb("a wide dict", b"\x80\x04}", |n| [&key(n)[..], b"Ns"].concat()),
        bomb("a wide dict in parts", b"\x80\x04}", |n| {
            let parts: Vec<u8> = (0..500).flat_map(|i| [&key(n * 500 + i)[..], b"N"].concat()).collect();
            [b"(", &parts[..], b"u"].concat()
        }),
        bomb("dicts of different keys", list(), |n| [b"}", &key(n)[..], b"Nsa"].concat()),
        bomb("the shortest events", with_keys(&["action", "size", "alloc"]), |_| {
            batch(b"}(h\x00h\x02h\x01K\x01u")
        }),
        bomb("the shortest blocks", with_keys(&["state", "size", "inactive"]), |_| {
            batch(b"}(h\x00h\x02h\x01K\x01u")
        }),
        bomb("the shortest segments", with_keys(&["blocks", "total_size"]), |_| {
            batch(b"}(h\x00)h\x01K\x01u")
        }),
        bomb("the shortest annotations", with_keys(&["stage", "name", "START"]), |_| {
            batch(b"}(h\x00h\x02h\x01h\x02u")
        }),
        bomb("frames that differ", with_keys(&["name", "filename", "line"]), |n| {
            [b"}(h\x00", &key(n)[..], b"h\x01h\x01u0"].concat()
        }),
        bomb("stacks that differ", with_keys(&["name", "filename"]), |n| {
            [b"](}(h\x00", &key(n)[..], b"h\x01h\x01ue0"].concat()
        }),
        bomb("marks", b"\x80\x04N", |_| b"(1".repeat(500)),
        Bomb {
            name: "JSON: empty lists",
            beginning: b"[".to_vec(),
            part: |_| b"[],".repeat(300),
            end: b"{\"segments\":[]}]",
        },
        Bomb {
            name: "JSON: lists of one",
            beginning: b"{\"segments\":[],\"x\":[".to_vec(),
            part: |_| b"[1],".repeat(300),
            end: b"1]}",
        },
        Bomb {
            name: "JSON: objects of one",
            beginning: b"{\"segments\":[],\"x\":[".to_vec(),
            part: |_| b"{\"\":1},".repeat(100),
            end: b"1]}",
        },
        Bomb {
            name: "JSON: short texts",
            beginning: b"{\"segments\":[],\"x\":[".to_vec(),
            part: |n| {
                [
                    b"\"",
                    &key(n)
                        .split_off(2)
                        .iter()
                        .map(|b| if *b == b'\\' { b'~' } else { *b })
                        .collect::<Vec<_>>()[..],
                    b"\",",
                ]
                .concat()
            },
            end: b"1]}",
        },
        Bomb {
            name: "JSON: numbers",
            beginning: b"{\"segments\":[],\"x\":[".to_vec(),
            part: |_| b"1,".repeat(500),
            end: b"1]}",
        },
        Bomb {
            name: "JSON: one text",
            beginning: b"{\"x\":\"".to_vec(),
            part: |_| vec![b'x'; 4096],
            end: b"\",\"segments\":[]}",
        },
    ]
}

fn write(bomb: &Bomb, path: &Path) -> u64 {
    let mut file = BufWriter::new(File::create(path).unwrap());
    file.write_all(&bomb.beginning).unwrap();
    let mut bytes = bomb.beginning.len();
    for n in 0.. {
        let part = (bomb.part)(n);
        file.write_all(&part).unwrap();
        bytes += part.len();
        if bytes > INPUT_BYTES {
            break;
        }
    }
    file.write_all(bomb.end).unwrap();
    (bytes + bomb.end.len()) as u64
}

/// The highest memory of a process that reads this file, and what came of it.
fn read_in_a_child(path: &Path) -> (u64, String) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "memory::child", "--nocapture"]).env(INPUT, path);
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = text.lines().find_map(|line| line.split_once("PEAK ")).map(|(_, said)| said.to_owned());
    let said =
        said.unwrap_or_else(|| panic!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)));
    let (kib, outcome) = said.split_once(' ').unwrap();
    (kib.parse::<u64>().unwrap() * 1024, outcome.to_owned())
}

/// Reads one file and says the highest memory, when it is asked to by a test that runs this program again.
#[test]
fn child() {
    let Some(path) = std::env::var_os(INPUT).map(PathBuf::from) else { return };
    let outcome = match open(File::open(path).unwrap()) {
        Ok(snapshot) => format!("opens with {} events", snapshot.trace.len()),
        Err(error) => format!("{}: {error}", error.code()),
    };
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    println!("PEAK {} {outcome}", line.trim().trim_end_matches(" kB"));
}

#[test]
fn no_input_takes_more_than_four_times_its_size() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let mut over = Vec::new();
    for bomb in bombs() {
        let path = folder.join(format!("memory-bomb-{}", std::process::id()));
        let bytes = write(&bomb, &path);
        let (peak, outcome) = read_in_a_child(&path);
        fs::remove_file(&path).unwrap();
        let times = peak.saturating_sub(BASE_BYTES) as f64 / bytes as f64;
        let line = format!("{:<34} {:>5} MB  {times:>5.1} ×  {}", bomb.name, peak / 1_000_000, outcome);
        println!("{line}");
        if peak > 4 * bytes + BASE_BYTES {
            over.push(line);
        }
    }
    assert!(over.is_empty(), "more than 4 × the input and 64 MB:\n{}", over.join("\n"));
}
