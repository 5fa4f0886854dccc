//! A training of a transformer, as its allocator sees it: weights, activations, gradients, optimizer state.

use std::io::{self, Write};

use crate::{
    allocator::Allocator,
    dice::Dice,
    file::{self, Dialect},
    rules::Rules,
    stacks::{Stack, Stacks},
};

/// Layers of the model.
const LAYERS: u64 = 32;
/// Tensors a layer's forward pass keeps for the backward pass.
const KEPT: u64 = 6;
/// Tensors it drops at once, per kept one.
const DROPPED: u64 = 2;
/// Hidden size of the model.
const HIDDEN: u64 = 2048;
/// Bytes of a number.
const NUMBER: u64 = 2;
/// C++ frames on top of the Python ones with `stacks="all"`; files of a million events then have 150 MB.
const NATIVE_FRAMES: u64 = 24;

/// What recording was told of stacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recording {
    /// `stacks="python"`.
    Python,
    /// `stacks="all"`: C++ frames too, most of them without a name.
    All,
}

/// Writes the snapshot of a training whose history has at least `n_events` events; its last step is finished.
/// Says how many events there are.
///
/// It trains twice: torch writes the segments as they are at the end before the events, and no event stays in
/// memory for longer than a step.
pub fn write(n_events: usize, recording: Recording, out: impl Write) -> io::Result<usize> {
    let mut training = Training::start(recording);
    let mut n = 0;
    while n < n_events {
        training.step();
        n += training.allocator.events.drain(..).len();
    }
    let ended = training;
    let mut training = Training::start(recording);
    file::stream(&[&ended.allocator], &ended.stacks, Dialect::Torch, out, |_, write| {
        let mut written = 0;
        while written < n {
            training.step();
            written += training.allocator.events.len();
            training.allocator.events.drain(..).try_for_each(|event| write(&event))?;
        }
        Ok(())
    })?;
    Ok(n)
}

/// A training that goes on for as long as someone asks for steps.
#[derive(Debug)]
pub struct Training {
    /// Its allocator; [`Allocator::events`] are those since recording began.
    pub allocator: Allocator,
    /// Its call stacks.
    pub stacks: Stacks,
    dice: Dice,
    sites: Vec<Site>,
}

/// Where in a layer memory is asked for.
#[derive(Debug)]
struct Site {
    forward: Stack,
    drop: Stack,
    backward: Stack,
}

impl Training {
    /// Loads weights and trains one step; recording begins after it.
    pub fn start(recording: Recording) -> Self {
        let mut stacks = Stacks::default();
        let sites = sites(&mut stacks, recording);
        let load = site_stack(&mut stacks, recording, "load_weights", 0, &[]);
        let adam = site_stack(&mut stacks, recording, "adamw_step", 0, &[]);
        let mut training =
            Self { allocator: Allocator::new(Rules::default()), stacks, dice: Dice(8642), sites };
        let weights = (0..LAYERS * KEPT).map(|_| HIDDEN * HIDDEN * NUMBER);
        weights.clone().for_each(|bytes| _ = training.alloc(bytes, load));
        training.step();
        weights.for_each(|bytes| _ = training.alloc(2 * bytes, adam));
        training.allocator.events.clear();
        training
    }

    /// One forward and backward pass over a batch whose length differs from step to step.
    pub fn step(&mut self) {
        let tokens = 512 + 64 * self.dice.below(48);
        let mut kept = Vec::new();
        for at in 0..self.sites.len() {
            let Site { forward, drop, .. } = self.sites[at];
            let bytes = tokens * HIDDEN * NUMBER / (1 + self.dice.below(4));
            let dropped: Vec<u64> = (0..DROPPED)
                .map(|_| {
                    let bytes = bytes / (1 + self.dice.below(64)) + self.dice.below(512);
                    self.alloc(bytes, forward)
                })
                .collect();
            kept.push(self.alloc(bytes, forward));
            dropped.into_iter().for_each(|address| self.allocator.free(address, drop));
        }
        let mut gradients = Vec::new();
        for (at, activation) in kept.into_iter().enumerate().rev() {
            let Site { backward, .. } = self.sites[at];
            let scratch_bytes = tokens * HIDDEN * NUMBER / (1 + self.dice.below(8));
            let scratch = self.alloc(scratch_bytes, backward);
            gradients.push(self.alloc(HIDDEN * HIDDEN * NUMBER, backward));
            self.allocator.free(activation, backward);
            self.allocator.free(scratch, backward);
        }
        let zero_grad = self.sites.first().map_or(0, |site| site.drop);
        gradients.into_iter().for_each(|address| self.allocator.free(address, zero_grad));
    }

    fn alloc(&mut self, bytes: u64, stack: Stack) -> u64 {
        self.allocator.alloc(bytes, 0, stack).expect("the training fits its device")
    }
}

/// Every place in the model that keeps a tensor, in the order of the forward pass.
fn sites(stacks: &mut Stacks, recording: Recording) -> Vec<Site> {
    let mut sites = Vec::new();
    for layer in 0..LAYERS {
        for tensor in 0..KEPT {
            let part = if tensor < KEPT / 2 { "attention" } else { "mlp" };
            let module = [
                format!("{part}_{layer}_{tensor}"),
                format!("forward_{layer}_{tensor}"),
                format!("layer_{layer}"),
            ];
            let mut stack = |function, line, module| site_stack(stacks, recording, function, line, module);
            sites.push(Site {
                forward: stack("linear", 100 + 10 * tensor, &module),
                drop: stack("dropout", 200 + 10 * tensor, &module[2..]),
                backward: stack("backward", 300 + 10 * tensor, &module[..1]),
            });
        }
    }
    sites
}

/// A stack as deep as those of real trainings: a few frames of its own on top of those of every call.
fn site_stack(
    stacks: &mut Stacks,
    recording: Recording,
    function: &str,
    line: u64,
    module: &[String],
) -> Stack {
    let mut frames = Vec::new();
    if recording == Recording::All {
        for depth in 0..NATIVE_FRAMES {
            // Two in three have no symbol; C++ frames have no line.
            let (name, file) = match depth % 3 {
                0 => (format!("at::_ops::{function}::call(at::Tensor const&, {depth})"), "Operators.cpp"),
                _ => ("??".to_owned(), ["??", "libtorch_cpu.so", "libtorch_cuda.so"][(depth % 3) as usize]),
            };
            frames.push(stacks.frame(&name, file, if depth % 3 == 1 { u64::MAX } else { 0 }));
        }
    }
    frames.push(stacks.frame(function, "torch/nn/functional.py", line));
    for (name, line) in module.iter().zip([41, 88, 120]) {
        frames.push(stacks.frame(name, "model/transformer.py", line));
        frames.push(stacks.frame("_call_impl", "torch/nn/modules/module.py", 1784));
        frames.push(stacks.frame("_wrapped_call_impl", "torch/nn/modules/module.py", 1773));
    }
    for depth in 0..8 {
        frames.push(stacks.frame(&format!("call_{depth}"), "train/loop.py", 300 - 30 * depth));
    }
    frames.push(stacks.frame("<module>", "train/main.py", 12));
    stacks.stack(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(recording: Recording) -> (usize, usize) {
        let mut pickle = Vec::new();
        let n_events = write(50_000, recording, &mut pickle).unwrap();
        (n_events, pickle.len() / n_events)
    }

    #[test]
    fn an_event_takes_as_many_bytes_as_in_real_files() {
        let (n_events, bytes_per_event) = written(Recording::Python);
        assert!((50_000..53_000).contains(&n_events));
        assert!((90..125).contains(&bytes_per_event), "{bytes_per_event} bytes per event");
        let (_, bytes_per_event) = written(Recording::All);
        assert!((140..160).contains(&bytes_per_event), "{bytes_per_event} bytes per event");
    }
}
