//! One module per page.

mod runs;
mod run;
mod snapshot;
mod upload;
mod open_file;
mod missing;

pub(crate) use missing::Missing;
pub(crate) use open_file::OpenFile;
pub(crate) use run::Run;
pub(crate) use runs::Runs;
pub(crate) use snapshot::Snapshot;
pub(crate) use upload::Upload;
