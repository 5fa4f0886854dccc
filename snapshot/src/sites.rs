//! Which line of a stack is meant, and how frames are written in one line.

use crate::Snapshot;
use crate::model::{Frame, StackId};

/// Folders below which Python's packages lie.
const PACKAGE_FOLDERS: [&str; 2] = ["site-packages", "dist-packages"];

/// PyTorch's own packages: frames in them say how memory was allocated, not for what.
const TORCH: [&str; 2] = ["torch", "torch_npu"];

/// Files that stand for none: C++ without symbols, and everything in a profile, which puts the file into the name.
const NO_FILES: [&str; 3] = ["", "??", "none"];

/// A frame in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The function; "??" when unknown.
    pub function: String,
    /// The file; empty when unknown.
    pub file: String,
    /// The line, if it is known.
    pub line: Option<u32>,
}

/// What a frame says. Snapshots converted from a profile have "train.py(12): step" for a name.
pub fn place(snapshot: &Snapshot, frame: Frame) -> Place {
    let (name, file) = (snapshot.strings.text(frame.name), snapshot.strings.text(frame.filename));
    let is_unknown = NO_FILES.contains(&&*file);
    if is_unknown && let Some((file, line, function)) = of_a_profile(&name) {
        return Place { function: function.to_owned(), file: file.to_owned(), line: Some(line) };
    }
    Place {
        function: if name.is_empty() { "??".to_owned() } else { name.into_owned() },
        file: if is_unknown { String::new() } else { file.into_owned() },
        line: frame.known_line().filter(|_| !is_unknown),
    }
}

/// Takes "train.py(12): step" apart.
fn of_a_profile(name: &str) -> Option<(&str, u32, &str)> {
    let (place, function) = name.split_once("): ")?;
    let (file, line) = place.rsplit_once('(')?;
    Some((file, line.parse().ok()?, function))
}

/// The innermost frame of a stack that is Python code outside PyTorch; else the innermost frame of Python code,
/// else the innermost of all.
///
/// A tensor is made somewhere in `torch/nn/functional.py`, whoever asked for it; the line a person can change
/// is further out.
pub fn site(snapshot: &Snapshot, stack: StackId) -> Option<Frame> {
    let is_own = |frame: &Frame| is_own(snapshot, *frame);
    let frames = || snapshot.stacks.frames(stack);
    frames().find(is_own).or_else(|| innermost_python(snapshot, stack)).or_else(|| frames().next())
}

/// The innermost frame of a stack that is Python code, PyTorch's own included.
pub fn innermost_python(snapshot: &Snapshot, stack: StackId) -> Option<Frame> {
    snapshot.stacks.frames(stack).find(|frame| is_of_python(snapshot, *frame))
}

/// True for frames of Python code, PyTorch's own included; false for C++ and what has no file.
pub fn is_of_python(snapshot: &Snapshot, frame: Frame) -> bool {
    is_python(&place(snapshot, frame).file)
}

/// True for frames of Python code outside PyTorch: lines that a person can change.
pub fn is_own(snapshot: &Snapshot, frame: Frame) -> bool {
    let file = place(snapshot, frame).file;
    is_python(&file) && !is_torch(&file)
}

/// A frame in one line: "train.py:12 forward". An unknown file or line is left out.
///
/// Line ends and semicolons, which separate frames and stacks elsewhere, become spaces and commas.
pub fn frame(snapshot: &Snapshot, frame: Frame) -> String {
    let Place { function, file, line } = place(snapshot, frame);
    let mut text = file;
    if !text.is_empty() {
        if let Some(line) = line {
            text.push_str(&format!(":{line}"));
        }
        text.push(' ');
    }
    text.push_str(&function);
    if text.contains(|c: char| c == ';' || c.is_control()) {
        text = text.replace(';', ",").replace(|c: char| c.is_control(), " ");
    }
    text
}

/// The Python module a file is, by its place: "torch.optim.adamw" of
/// ".../site-packages/torch/optim/adamw.py" and of "torch/optim/adamw.py", "train" of "/home/me/train.py".
pub fn module(filename: &str) -> String {
    let parts: Vec<&str> = filename.split(['/', '\\']).filter(|part| !part.is_empty()).collect();
    let n_before = parts.iter().rposition(|part| PACKAGE_FOLDERS.contains(part)).or_else(|| {
        // The standard library: lib/python3.12/threading.py.
        parts.iter().rposition(|part| part.starts_with("python3")).filter(|at| at + 1 < parts.len())
    });
    let inside = match n_before {
        Some(at) => &parts[at + 1..],
        // A path from the root says nothing of where its packages begin.
        None if is_absolute(filename) => &parts[parts.len().saturating_sub(1)..],
        None => &parts[..],
    };
    let dotted = inside.join(".");
    let dotted = dotted.strip_suffix(".py").unwrap_or(&dotted);
    dotted.strip_suffix(".__init__").unwrap_or(dotted).to_owned()
}

fn is_python(filename: &str) -> bool {
    // "<string>", "<stdin>" and cells of notebooks are someone's code; "<frozen …>" is Python's.
    filename.ends_with(".py") || (filename.starts_with('<') && !filename.starts_with("<frozen"))
}

fn is_torch(filename: &str) -> bool {
    let mut parts = filename.split(['/', '\\']);
    // Paths of a profile begin with the package.
    let mut is_home = !is_absolute(filename);
    parts.any(|part| {
        let is_at_home =
            std::mem::replace(&mut is_home, PACKAGE_FOLDERS.contains(&part) || part == "pytorch");
        is_at_home && TORCH.contains(&part)
    })
}

fn is_absolute(filename: &str) -> bool {
    filename.starts_with(['/', '\\']) || filename.get(1..3).is_some_and(|drive| drive.starts_with(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The site and the innermost Python frame of a stack of these files, innermost first.
    fn check(files: &[&str], site_file: &str, python_file: &str) {
        let mut snapshot = Snapshot::default();
        let name = snapshot.strings.intern(b"f");
        let frames: Vec<u32> = files
            .iter()
            .map(|file| {
                let filename = snapshot.strings.intern(file.as_bytes());
                snapshot.stacks.intern_frame(Frame { name, filename, line: 1, more: 0 }).0
            })
            .collect();
        let stack = snapshot.stacks.intern(&frames);
        let file = |frame: Option<Frame>| {
            frame.map_or(String::new(), |frame| snapshot.strings.text(frame.filename).into_owned())
        };
        assert_eq!(file(site(&snapshot, stack)), site_file);
        assert_eq!(file(innermost_python(&snapshot, stack)), python_file);
    }

    #[test]
    fn the_site_is_the_innermost_line_that_is_not_pytorchs() {
        let linear = "/env/lib/python3.12/site-packages/torch/nn/modules/linear.py";
        check(&[linear, "/home/me/model.py", "/home/me/train.py"], "/home/me/model.py", linear);
        check(&["??", linear, "<string>"], "<string>", linear);
        check(&["/home/me/torch/train.py"], "/home/me/torch/train.py", "/home/me/torch/train.py");
        check(&["??", linear], linear, linear);
        check(&["torch/nn/functional.py", "model.py"], "model.py", "torch/nn/functional.py");
        check(&["??", "alloc.cpp"], "??", "");
        check(&[], "", "");
    }

    #[test]
    fn a_module_is_named_by_its_place_below_the_packages() {
        assert_eq!(module("/env/lib/python3.12/site-packages/torch/optim/adamw.py"), "torch.optim.adamw");
        assert_eq!(module("/env/lib/python3.12/site-packages/verl/__init__.py"), "verl");
        assert_eq!(module("/usr/lib/python3.12/threading.py"), "threading");
        assert_eq!(module("C:\\work\\train.py"), "train");
        assert_eq!(module("torch/optim/sgd.py"), "torch.optim.sgd");
        assert_eq!(module("/home/me/src/train.py"), "train");
        assert_eq!(module("<string>"), "<string>");
        assert_eq!(module(""), "");
    }

    #[test]
    fn a_frame_is_one_line_without_what_separates_frames() {
        let mut snapshot = Snapshot::default();
        let mut text = |name: &str, filename: &str, line| {
            let (name, filename) =
                (snapshot.strings.intern(name.as_bytes()), snapshot.strings.intern(filename.as_bytes()));
            frame(&snapshot, Frame { name, filename, line, more: 0 })
        };
        assert_eq!(text("forward", "a.py", 3), "a.py:3 forward");
        assert_eq!(text("forward", "a.py", 0), "a.py forward");
        assert_eq!(text("forward", "a.py", Frame::UNKNOWN_LINE), "a.py forward");
        assert_eq!(text("at::empty(a; b)\n", "??", 0), "at::empty(a, b) ");
        assert_eq!(text("", "", 0), "??");
        assert_eq!(text("torch/optim/sgd.py(250): sgd", "none", 0), "torch/optim/sgd.py:250 sgd");
        assert_eq!(text("<built-in method to of Tensor>", "none", 0), "<built-in method to of Tensor>");
    }
}
