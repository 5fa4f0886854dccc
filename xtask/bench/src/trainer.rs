//! A training of a transformer, as its allocator sees it: weights, activations, gradients, optimizer state.

use crate::allocator::{Allocator, Stack};

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

/// One frame: function, file, line.
pub(crate) type Frame = (String, &'static str, u32);

/// Call stacks, innermost frame first; each distinct frame and stack once.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    pub(crate) frames: Vec<Frame>,
    pub(crate) stacks: Vec<Vec<u32>>,
}

impl Stacks {
    fn frame(&mut self, name: String, file: &'static str, line: u32) -> u32 {
        let frame = (name, file, line);
        let known = self.frames.iter().position(|known| *known == frame);
        let at = known.unwrap_or_else(|| {
            self.frames.push(frame);
            self.frames.len() - 1
        });
        u32::try_from(at).expect("a few thousand frames")
    }

    fn stack(&mut self, frames: Vec<u32>) -> Stack {
        let known = self.stacks.iter().position(|known| *known == frames);
        let at = known.unwrap_or_else(|| {
            self.stacks.push(frames);
            self.stacks.len() - 1
        });
        u32::try_from(at).expect("a few thousand stacks")
    }
}

/// Numbers that look random and are the same every time (SplitMix64).
struct Dice(u64);

impl Dice {
    /// At least 0, less than `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// Where in a layer memory is asked for.
struct Site {
    forward: Stack,
    drop: Stack,
    backward: Stack,
}

/// Trains until the history has at least `n_events` events, recording from the second step on; the last step is
/// finished.
pub(crate) fn train(n_events: usize) -> (Allocator, Stacks) {
    let mut allocator = Allocator::default();
    let mut stacks = Stacks::default();
    let mut dice = Dice(8642);
    let sites = sites(&mut stacks);
    let load = site_stack(&mut stacks, "load_weights", 0, &[]);
    let adam = site_stack(&mut stacks, "adamw_step", 0, &[]);

    let weights = (0..LAYERS * KEPT).map(|_| HIDDEN * HIDDEN * NUMBER);
    let hold = |allocator: &mut Allocator, bytes, stack| _ = allocator.alloc(bytes, stack);
    weights.clone().for_each(|bytes| hold(&mut allocator, bytes, load));
    let mut is_first_step = true;
    while allocator.events.len() < n_events {
        step(&mut allocator, &sites, &mut dice);
        if is_first_step {
            weights.clone().for_each(|bytes| hold(&mut allocator, 2 * bytes, adam));
            allocator.start_recording();
            is_first_step = false;
        }
    }
    (allocator, stacks)
}

/// One forward and backward pass over a batch whose length differs from step to step.
fn step(allocator: &mut Allocator, sites: &[Site], dice: &mut Dice) {
    let tokens = 512 + 64 * dice.below(48);
    let mut kept = Vec::new();
    for site in sites {
        let bytes = tokens * HIDDEN * NUMBER / (1 + dice.below(4));
        let dropped: Vec<u64> = (0..DROPPED)
            .map(|_| allocator.alloc(bytes / (1 + dice.below(64)) + dice.below(512), site.forward))
            .collect();
        kept.push(allocator.alloc(bytes, site.forward));
        dropped.into_iter().for_each(|address| allocator.free(address, site.drop));
    }
    let mut gradients = Vec::new();
    for (site, activation) in sites.iter().zip(kept).rev() {
        let scratch = allocator.alloc(tokens * HIDDEN * NUMBER / (1 + dice.below(8)), site.backward);
        gradients.push(allocator.alloc(HIDDEN * HIDDEN * NUMBER, site.backward));
        allocator.free(activation, site.backward);
        allocator.free(scratch, site.backward);
    }
    let zero_grad = sites.first().map_or(0, |site| site.drop);
    gradients.into_iter().for_each(|address| allocator.free(address, zero_grad));
}

/// Every place in the model that keeps a tensor, in the order of the forward pass.
fn sites(stacks: &mut Stacks) -> Vec<Site> {
    let mut sites = Vec::new();
    for layer in 0..LAYERS {
        for tensor in 0..KEPT {
            let part = if tensor < KEPT / 2 { "attention" } else { "mlp" };
            let module = [
                format!("{part}_{layer}_{tensor}"),
                format!("forward_{layer}_{tensor}"),
                format!("layer_{layer}"),
            ];
            sites.push(Site {
                forward: site_stack(stacks, "linear", 100 + 10 * tensor, &module),
                drop: site_stack(stacks, "dropout", 200 + 10 * tensor, &module[2..]),
                backward: site_stack(stacks, "backward", 300 + 10 * tensor, &module[..1]),
            });
        }
    }
    sites
}

/// A stack as deep as those of real trainings: a few frames of its own on top of those of every call.
fn site_stack(stacks: &mut Stacks, function: &str, line: u64, module: &[String]) -> Stack {
    let line = u32::try_from(line).expect("a few hundred lines");
    let mut frames = vec![stacks.frame(function.to_owned(), "torch/nn/functional.py", line)];
    for (name, line) in module.iter().zip([41, 88, 120]) {
        frames.push(stacks.frame(name.clone(), "model/transformer.py", line));
        frames.push(stacks.frame("_call_impl".to_owned(), "torch/nn/modules/module.py", 1784));
        frames.push(stacks.frame("_wrapped_call_impl".to_owned(), "torch/nn/modules/module.py", 1773));
    }
    for depth in 0..8 {
        frames.push(stacks.frame(format!("call_{depth}"), "train/loop.py", 300 - 30 * depth));
    }
    frames.push(stacks.frame("<module>".to_owned(), "train/main.py", 12));
    stacks.stack(frames)
}
