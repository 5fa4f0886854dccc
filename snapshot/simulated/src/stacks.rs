//! Call stacks of a program that never ran.

use std::collections::HashMap;

/// Numbers a stack of [`Stacks`].
pub type Stack = u32;

/// One frame: function, file, line.
pub type Frame = (String, String, u64);

/// Call stacks, innermost frame first; each distinct frame and stack once.
#[derive(Debug, Default)]
pub struct Stacks {
    /// Frames by number.
    pub frames: Vec<Frame>,
    /// Stacks by number: numbers of frames.
    pub stacks: Vec<Vec<u32>>,
    known_frames: HashMap<Frame, u32>,
    known_stacks: HashMap<Vec<u32>, Stack>,
}

impl Stacks {
    /// The number of a frame.
    pub fn frame(&mut self, name: &str, file: &str, line: u64) -> u32 {
        let frame = (name.to_owned(), file.to_owned(), line);
        let next = u32::try_from(self.frames.len()).expect("a few thousand frames");
        *self.known_frames.entry(frame).or_insert_with_key(|frame| {
            self.frames.push(frame.clone());
            next
        })
    }

    /// The number of a stack.
    pub fn stack(&mut self, frames: Vec<u32>) -> Stack {
        let next = u32::try_from(self.stacks.len()).expect("a few thousand stacks");
        *self.known_stacks.entry(frames).or_insert_with_key(|frames| {
            self.stacks.push(frames.clone());
            next
        })
    }
}
