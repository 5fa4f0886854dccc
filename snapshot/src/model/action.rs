//! What an allocator can do; an action we do not know keeps its name.

/// An action of a trace entry, one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Action(pub u8);

/// Actions from here on are rows of [`ActionNames`].
const FIRST_UNKNOWN: u8 = 32;

impl Action {
    /// A block is handed out.
    pub const ALLOC: Self = Self(0);
    /// The program gave a block back; another stream may still use it.
    pub const FREE_REQUESTED: Self = Self(1);
    /// The block can be handed out again.
    pub const FREE_COMPLETED: Self = Self(2);
    /// A segment was taken from the device.
    pub const SEGMENT_ALLOC: Self = Self(3);
    /// A segment was given back to the device.
    pub const SEGMENT_FREE: Self = Self(4);
    /// A part of an expandable segment was mapped.
    pub const SEGMENT_MAP: Self = Self(5);
    /// A part of an expandable segment was unmapped.
    pub const SEGMENT_UNMAP: Self = Self(6);
    /// A request could not be met. Its address column holds the bytes the device reported free.
    pub const OOM: Self = Self(7);
    /// A snapshot was taken earlier.
    pub const SNAPSHOT: Self = Self(8);
    /// torch_npu: the next two events describe a workspace block older than the window.
    pub const WORKSPACE_SNAPSHOT: Self = Self(9);
    /// A tensor was named by the program (torch 2.14 and later).
    pub const ANNOTATE: Self = Self(10);
    /// A mark of nightly builds of early 2024.
    pub const USER_DEFINED: Self = Self(11);

    const KNOWN: [&'static str; 12] = [
        "alloc",
        "free_requested",
        "free_completed",
        "segment_alloc",
        "segment_free",
        "segment_map",
        "segment_unmap",
        "oom",
        "snapshot",
        "workspace_snapshot",
        "annotate",
        "user_defined",
    ];

    /// The action with this name, if this version knows it.
    pub fn known(name: &str) -> Option<Self> {
        // 12 entries: the position fits a byte.
        Self::KNOWN.iter().position(|known| *known == name).map(|at| Self(at as u8))
    }

    /// Its name, if this version knows it.
    pub fn known_name(self) -> Option<&'static str> {
        Self::KNOWN.get(usize::from(self.0)).copied()
    }
}

/// Names of actions this version does not know, in order of appearance. At most 223 are told apart; further
/// ones share the last.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ActionNames(pub Vec<String>);

impl ActionNames {
    /// The action for an unknown name, new or seen before.
    pub fn intern(&mut self, name: &str) -> Action {
        let most = usize::from(u8::MAX - FIRST_UNKNOWN);
        let at = self.0.iter().position(|known| known == name).unwrap_or_else(|| {
            if self.0.len() < most {
                self.0.push(name.to_owned());
            }
            self.0.len() - 1
        });
        Action(FIRST_UNKNOWN + at as u8)
    }

    /// The name behind an unknown action.
    pub fn name(&self, action: Action) -> Option<&str> {
        let at = usize::from(action.0.checked_sub(FIRST_UNKNOWN)?);
        self.0.get(at).map(String::as_str)
    }
}
